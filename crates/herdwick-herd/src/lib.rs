//! HERD: requests written into the server's memory, replies sent back
