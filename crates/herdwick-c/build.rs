//! Names the shared library for the dynamic linker: programs need this name, with the version of the ABI.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libherdwick.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
