//! Prints the public items in a file of rustdoc's JSON, one a line.
#![forbid(unsafe_code)]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let json = std::env::args().nth(1).ok_or("usage: pg-limiter-public-api FILE")?;
    let mut builder = public_api::Builder::from_rustdoc_json(json);
    builder = builder.omit_blanket_impls(true).omit_auto_trait_impls(true).omit_auto_derived_impls(true);
    println!("{}", builder.build()?);
    Ok(())
}
