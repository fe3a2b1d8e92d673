//! Writes the report of a made-up run: `cargo run -p tarn-report --example sample -- report.html [tiles nodes cores]`.

#[path = "../tests/common/mod.rs"]
mod common;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args
        .first()
        .ok_or("give the file to write, then tiles, nodes and cores if you like")?;
    let number = |at: usize, default: u32| args.get(at).map_or(Ok(default), |n| n.parse());
    let records = common::mosaic::mosaic(
        7,
        number(1, 24)?.max(1),
        number(2, 4)?.max(2),
        number(3, 2)?.max(1),
    );
    std::fs::write(
        path,
        tarn_report::html(&records, &tarn_report::PageLinks::default())?,
    )?;
    print!("{}", tarn_report::status(&records, 0)?);
    print!(
        "{}",
        tarn_report::render(&tarn_report::why(&records, "tmpfs")?)
    );
    Ok(())
}
