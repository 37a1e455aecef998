//! Replays the corpus of the fuzz target `packets`.

#[path = "../../../../fuzz/packets.rs"]
mod packets;

use std::{fs, path::Path};

#[test]
fn roce() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/roce");
    let mut count = 0;
    for file in fs::read_dir(corpus).expect("a corpus") {
        let path = file.expect("a file").path();
        println!("{}", path.display());
        let input = fs::read(&path).expect("its bytes");
        packets::check(&input);
        // Each prefix of an input has to pass as well.
        for end in 0..input.len().min(200) {
            packets::check(&input[..end]);
        }
        count += 1;
    }
    assert!(count >= 10, "{count} files");
}
