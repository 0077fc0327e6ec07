//! Damaged files: no decoder panics, and none reserves more memory than the file's header allows.
//! One test, since it counts all that the process allocates.

#[path = "../../tests/src/counting.rs"]
mod counting;

use std::path::Path;

use counting::Counting;
use image::{DynamicImage, ImageFormat};
use tributary_pictures::{Error, Header, Limits, Pixels, decode};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory of a decoder that does not depend on the picture: tables, rows, inflated blocks, errors.
const CONSTANT_BYTES: u64 = 512 << 10;

/// The WebP decoder reserves one partition of coefficients by its stated length, of 24 bits.
const PARTITION_BYTES: u64 = (16 << 20) + CONSTANT_BYTES;

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/vlm").join(name)).expect("a golden file")
}

/// Result of decoding, and the most bytes that were held meanwhile beyond those held before.
fn counted(file: &[u8], limits: &Limits) -> (Result<Pixels, Error>, u64) {
    let before = Counting::held();
    Counting::watch_from(before);
    let found = decode(file, None, limits);
    (found, (Counting::most() - before) as u64)
}

/// Ways to damage a byte: each of its bits flipped, all of them, and the bytes 0 and 255.
fn changes(byte: u8) -> impl Iterator<Item = u8> {
    (0..8).map(move |bit| byte ^ 1 << bit).chain([!byte, 0, 0xff])
}

/// Every byte of a file is replaced, in several ways.
fn damaged(name: &str) {
    let file = golden(name);
    let limits = Limits { encoded_bytes: 4096, pixels: 1 << 16, side: 1024 };
    let bound = 16 * limits.pixels + if name.ends_with(".webp") { PARTITION_BYTES } else { CONSTANT_BYTES };
    let (mut read, mut most) = (0, 0);
    for place in 0..file.len() {
        for changed in changes(file[place]) {
            let mut file = file.clone();
            file[place] = changed;
            let (found, held) = counted(&file, &limits);
            most = most.max(held);
            assert!(held <= bound, "{name}, byte {place}: {held} bytes were held, at most {bound} are right");
            match found {
                Ok(pixels) => {
                    read += 1;
                    assert_eq!(pixels.rgb.len() as u64, 3 * u64::from(pixels.width) * u64::from(pixels.height));
                    limits.check_size(pixels.width, pixels.height).expect("a picture within the limits");
                }
                Err(Error::Panic { what, .. }) => panic!("{name}, byte {place}: {what}"),
                Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
            }
        }
    }
    let tried = changes(0).count() * file.len();
    assert!(read < tried, "{name}: all of {tried} are read");
    println!("{name}: {tried} damaged files tried, {} refused, {read} read; at most {most} bytes held", tried - read);
}

/// Whole pictures take no more memory than their headers let expect.
fn whole(name: &str, file: &[u8]) {
    let limits = Limits::default();
    let header = Header::read(file, None, &limits).expect(name);
    let (found, held) = counted(file, &limits);
    assert!(found.is_ok(), "{name}: {found:?}");
    println!("{name}: {held} bytes held, {} estimated", header.peak_bytes);
    assert!(held <= header.peak_bytes + CONSTANT_BYTES, "{name}: {held} bytes, {} estimated", header.peak_bytes);
}

#[test]
fn damaged_files_do_no_harm() {
    let jpeg = ["baseline.jpg", "progressive.jpg", "cmyk.jpg", "turned.jpg"];
    let webp = ["lossy.webp", "lossless.webp", "glass.webp", "turned.webp", "moving.webp"];
    let png = ["palette.png", "bits.png", "turned.png", "moving.png"];
    for name in jpeg.into_iter().chain(webp).chain(png) {
        damaged(&format!("formats/{name}"));
    }
    ["a.png", "d.png", "e.png", "f.png"].into_iter().for_each(damaged);
    let (rgb, rgba) = (DynamicImage::new_rgb8(1024, 768), DynamicImage::new_rgba8(768, 1024));
    let deep =
        [DynamicImage::new_rgb16(700, 900), DynamicImage::new_rgba16(900, 700), DynamicImage::new_luma8(900, 900)];
    for (name, image, format) in [("rgb", &rgb, ImageFormat::Png), ("rgba", &rgba, ImageFormat::Png)]
        .into_iter()
        .chain([("rgb", &rgb, ImageFormat::Jpeg), ("rgb", &rgb, ImageFormat::WebP), ("rgba", &rgba, ImageFormat::WebP)])
        .chain(deep.iter().map(|image| ("other samples", image, ImageFormat::Png)))
    {
        let mut file = std::io::Cursor::new(Vec::new());
        image.write_to(&mut file, format).expect("a file");
        whole(&format!("{name} as {format:?}"), file.get_ref());
    }
}
