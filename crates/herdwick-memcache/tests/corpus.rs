//! Replays the corpus of the fuzz targets through their checks.

#[path = "../../../fuzz/check.rs"]
mod check;

use std::{fs, path::Path};

fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let files = fs::read_dir(corpus.join(target)).expect("a corpus");
    let mut count = 0;
    for file in files {
        let path = file.expect("a file").path();
        println!("{}", path.display());
        let input = fs::read(&path).expect("its bytes");
        check(&input);
        // The checks hold for every prefix, too.
        for end in 0..input.len().min(200) {
            check(&input[..end]);
        }
        count += 1;
    }
    assert!(count >= 10, "{count} files in {target}");
}

#[test]
fn classic() {
    replay("classic", check::classic);
}

#[test]
fn meta() {
    replay("meta", check::meta);
}

#[test]
fn binary() {
    replay("binary", check::binary);
}
