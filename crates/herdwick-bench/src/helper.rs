//! A background thread that repeats one function until it is dropped.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

use crate::host::pin;

/// A thread that calls one function repeatedly; dropping it stops and joins the thread.
pub(crate) struct Helper {
    stop: Arc<AtomicBool>,
    /// The kernel's number of the thread.
    id: i32,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Starts the thread, pinned to `cpus`.
    pub(crate) fn start(
        name: &str,
        cpus: &[usize],
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, cpus) = (Arc::clone(&stop), cpus.to_vec());
        let (told, id) = mpsc::channel();
        let run = move || {
            // The receiver waits for it, below.
            let _ = told.send(rustix::thread::gettid().as_raw_nonzero().get());
            pin(&cpus);
            // Relaxed: the flag publishes nothing, and `drop` joins the thread.
            while !stopped.load(Ordering::Relaxed) {
                work();
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)?;
        let id = id.recv().map_err(io::Error::other)?;
        Ok(Self {
            stop,
            id,
            thread: Some(thread),
        })
    }

    /// Returns the kernel's number of the thread.
    pub(crate) fn thread_id(&self) -> i32 {
        self.id
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}
