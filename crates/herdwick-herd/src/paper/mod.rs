//! HERD as the paper describes it (Kalia, Kaminsky, Andersen: "Using RDMA Efficiently for Key-Value
//! Services", SIGCOMM'14, section 4): the pipeline of requests that hides memory latency behind the posts
//! of replies. The server of this crate executes batches instead ([`crate::ServerSide`]).

mod pipeline;

pub use pipeline::{NO_OP_AFTER, Pipeline};
