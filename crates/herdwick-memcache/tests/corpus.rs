//! The fuzz targets' corpus, replayed.

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
        // Whatever holds of it holds of every beginning of it.
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
