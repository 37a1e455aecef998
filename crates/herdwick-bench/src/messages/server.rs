//! The server of an exchange: answers each request with its last words. It may do random memory accesses
//! for each, in place or by the pipeline of section 4.1.1 of the HERD paper, as for Fig 7.

use std::{hint::black_box, io, ops::Range, time::Duration};

use herdwick_check::Rng;
use herdwick_fabric::{Device, Port, PostError, Status};
use herdwick_herd::paper::Pipeline;
use herdwick_mem::{Arena, prefetch_read};

use super::{
    MESSAGE_WORDS_MAX,
    port::{Arrived, MessagePort},
};

/// The server's end, with the work that it does for a request.
pub(crate) struct EchoServer<D: Device> {
    channels: MessagePort<D>,
    arrived: Arrived,
    work: Option<Work>,
}

impl<D: Device> EchoServer<D> {
    pub(crate) fn new(channels: MessagePort<D>, work: Option<Work>) -> Self {
        Self {
            arrived: channels.arrived(),
            channels,
            work,
        }
    }

    /// Posts the first RECVs.
    ///
    /// # Errors
    /// [`PostError`].
    pub(crate) fn start(&mut self) -> Result<(), PostError> {
        self.channels.start()
    }

    /// Runs one pass.
    ///
    /// # Errors
    /// The status of a work request that failed.
    #[inline]
    pub(crate) fn pass(&mut self, now: Duration) -> Result<(), Status> {
        let Self {
            channels,
            arrived,
            work,
        } = self;
        arrived.clear();
        channels.receive(now, arrived)?;
        let skip = 1 + channels.words.inward - channels.words.out;
        for message in arrived.chunks_exact(1 + channels.words.inward) {
            let reply = (message[0] as usize, &message[skip..]);
            match work {
                None => answer(channels, reply),
                Some(work) => work.take(reply, |reply| answer(channels, reply)),
            }
        }
        if let (true, Some(work)) = (arrived.is_empty(), work) {
            work.idle(|reply| answer(channels, reply));
        }
        channels.port.flush(now);
        Ok(())
    }
}

/// Sends a reply. One that finds the queue full is lost, and asked for again.
#[inline]
fn answer<D: Device>(channels: &mut MessagePort<D>, (channel, reply): (usize, &[u64])) {
    let _ = channels.send(channel, reply);
}

/// Random memory accesses, a number of them for each request, each of which depends on the one before.
pub(crate) struct Work {
    memory: Arena<u64>,
    accesses: usize,
    /// Where requests wait for their memory; `None`: the accesses of a request are done at once.
    pipeline: Option<Pipeline<PipelinedRequest>>,
    /// The replies of the requests in the pipeline.
    replies: Vec<u64>,
    /// Requests taken into the pipeline.
    taken: usize,
}

/// A request in the pipeline.
struct PipelinedRequest {
    /// The word to access next.
    at: usize,
    channel: usize,
    /// Where its reply is.
    reply: Range<usize>,
}

/// Bytes that are accessed: beyond the caches of most CPUs.
const MEMORY_BYTES: usize = 256 << 20;
/// Words of a page, which each have memory of their own.
const PAGE_WORDS: usize = 512;

impl Work {
    /// Allocates the memory. `prefetch`: whether a pipeline hides the time that it takes.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(crate) fn new(accesses: usize, prefetch: bool) -> io::Result<Self> {
        let mut memory = Arena::zeroed(MEMORY_BYTES / size_of::<u64>())?;
        // Pages that were never written are all the same one.
        for (page, words) in memory.chunks_mut(PAGE_WORDS).enumerate() {
            words[0] = page as u64;
        }
        Ok(Self {
            memory,
            accesses,
            pipeline: prefetch.then(|| Pipeline::new(accesses)),
            replies: vec![0; (accesses + 1) * MESSAGE_WORDS_MAX],
            taken: 0,
        })
    }

    /// Does the work of a request, or takes it into the pipeline; `done` gets a reply whose work is
    /// done.
    #[inline]
    fn take(&mut self, (channel, reply): (usize, &[u64]), done: impl FnOnce((usize, &[u64]))) {
        let mut at = place(&self.memory, reply.last().copied().unwrap_or_default());
        if self.pipeline.is_none() {
            for _ in 0..self.accesses {
                at = next(&self.memory, at);
            }
            black_box(at);
            return done((channel, reply));
        }
        prefetch_read(&self.memory, at);
        // One more reply than the pipeline has requests.
        let first = self.taken % (self.accesses + 1) * MESSAGE_WORDS_MAX;
        self.taken += 1;
        let kept = first..first + reply.len();
        self.replies[kept.clone()].copy_from_slice(reply);
        let job = PipelinedRequest {
            at,
            channel,
            reply: kept,
        };
        self.push(Some(job), done);
    }

    /// Takes note of a pass without requests, which may have to move the pipeline.
    #[inline]
    fn idle(&mut self, done: impl FnOnce((usize, &[u64]))) {
        if self.pipeline.as_mut().is_some_and(Pipeline::polled_nothing) {
            self.push(None, done);
        }
    }

    #[inline]
    fn push(&mut self, job: Option<PipelinedRequest>, done: impl FnOnce((usize, &[u64]))) {
        let Self {
            memory,
            accesses,
            pipeline,
            replies,
            ..
        } = self;
        let Some(pipeline) = pipeline else { return };
        let ended = pipeline.push(job, |stage, job| {
            job.at = next(memory, job.at);
            if stage < *accesses {
                prefetch_read(memory, job.at);
            }
        });
        if let Some(PipelinedRequest { at, channel, reply }) = ended {
            black_box(at);
            done((channel, &replies[reply]));
        }
    }
}

/// Returns the word to access after word `at`, which depends on what is in that.
#[inline]
fn next(memory: &[u64], at: usize) -> usize {
    place(memory, at as u64 ^ memory[at])
}

/// Returns the word that `seed` stands for.
#[inline]
fn place(memory: &[u64], seed: u64) -> usize {
    Rng::new(seed).below(memory.len() as u64) as usize
}
