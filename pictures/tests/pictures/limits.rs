//! Files that are no pictures, too long, cut off, or whose headers state too much.

use std::fmt::Write as _;
use std::time::Instant;

use image::{DynamicImage, ImageFormat};
use tributary_pictures::{Error, Header, Kind, Limits, Picture, decode};

use super::{golden, tiny_rules};

fn refusal(file: &[u8]) -> Error {
    decode(file, None, &Limits::default()).expect_err("refused")
}

/// A PNG file of one pixel whose header states another size, with the header's checksum right.
fn png_of(width: u32, height: u32, is_deep: bool) -> Vec<u8> {
    let image = if is_deep { DynamicImage::new_rgba16(1, 1) } else { DynamicImage::new_rgb8(1, 1) };
    let mut file = std::io::Cursor::new(Vec::new());
    image.write_to(&mut file, ImageFormat::Png).expect("a PNG file");
    let mut file = file.into_inner();
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let checksum = crc32fast::hash(&file[12..29]);
    file[29..33].copy_from_slice(&checksum.to_be_bytes());
    file
}

/// A JPEG file whose header states another size.
fn jpeg_of(width: u16, height: u16) -> Vec<u8> {
    let mut file = golden("formats/baseline.jpg");
    let start = file.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame header");
    file[start + 5..start + 7].copy_from_slice(&height.to_be_bytes());
    file[start + 7..start + 9].copy_from_slice(&width.to_be_bytes());
    file
}

#[test]
fn headers_that_state_too_much_are_refused_unread() {
    let side = |width, height| Error::Side { width, height, most: 32768 };
    let pixels = |width, height, pixels| Error::Pixels { width, height, pixels, most: 64 << 20 };
    let begun = Instant::now();
    let cases = [
        (png_of(50000, 50000, false), side(50000, 50000)),
        (png_of(32769, 1, false), side(32769, 1)),
        (png_of(1, u32::MAX, false), side(1, u32::MAX)),
        (png_of(0, 5, false), side(0, 5)),
        (png_of(8193, 8192, false), pixels(8193, 8192, 67_117_056)),
        (png_of(32768, 32768, false), pixels(32768, 32768, 1 << 30)),
        (png_of(8192, 8192, true), Error::Memory { bytes: 512 << 20, most: 320 << 20 }),
        (jpeg_of(65500, 2), side(65500, 2)),
        (jpeg_of(30000, 30000), pixels(30000, 30000, 900_000_000)),
    ];
    for (file, wanted) in cases {
        assert_eq!(refusal(&file), wanted);
        assert_eq!(Header::read(&file, None, &Limits::default()), Err(wanted));
    }
    let took = begun.elapsed();
    assert!(took.as_secs() < 1, "{took:?}: as if pixels had been decoded");
    let message = refusal(&png_of(8193, 8192, false)).to_string();
    assert_eq!(message, "the picture has 8193 x 8192 = 67117056 pixels, at most 67108864 are read");
    let message = refusal(&png_of(50000, 50000, false)).to_string();
    assert_eq!(message, "the picture has 50000 x 50000 pixels, a side has 1 to 32768");
}

/// The file has one pixel; its header states more, within the limits.
#[test]
fn headers_that_state_what_is_not_there_are_refused() {
    for (width, height) in [(2, 2), (200, 300)] {
        let error = refusal(&png_of(width, height, false));
        assert!(matches!(error, Error::Decoder { kind: Kind::Png, .. }), "{error}");
    }
}

/// An extended WebP file with a canvas and a lossy frame of the given sizes.
fn webp_of(canvas: (u32, u32), frame: (u16, u16)) -> Vec<u8> {
    let simple = golden("formats/lossy.webp");
    let mut body = simple[12..].to_vec();
    body[14..16].copy_from_slice(&frame.0.to_le_bytes());
    body[16..18].copy_from_slice(&frame.1.to_le_bytes());
    let mut file =
        [b"RIFF", &(body.len() as u32 + 22).to_le_bytes()[..], b"WEBPVP8X", &[10, 0, 0, 0, 0, 0, 0, 0]].concat();
    for side in [canvas.0, canvas.1] {
        file.extend(&(side - 1).to_le_bytes()[..3]);
    }
    file.extend(body);
    file
}

#[test]
fn webp_frames_have_the_size_of_their_canvas() {
    assert!(decode(&webp_of((40, 28), (40, 28)), None, &Limits::default()).is_ok());
    let (canvas_width, canvas_height, width, height) = (40, 28, 16383, 16383);
    let wanted = Error::Frame { canvas_width, canvas_height, width, height };
    assert_eq!(refusal(&webp_of((40, 28), (16383, 16383))), wanted);
    let wide = Error::Side { width: 1 << 24, height: 28, most: 32768 };
    assert!(matches!(refusal(&webp_of((1 << 24, 28), (40, 28))), Error::Frame { .. }));
    assert_eq!(Limits::default().check_size(1 << 24, 28), Err(wide));
}

#[test]
fn long_files_are_refused() {
    let file = golden("a.png");
    let limits = Limits { encoded_bytes: file.len() - 1, ..Limits::default() };
    let wanted = Error::EncodedBytes { bytes: 1948, most: 1947 };
    assert_eq!(decode(&file, None, &limits), Err(wanted.clone()));
    assert_eq!(wanted.to_string(), "the picture's file has 1948 bytes, at most 1947 are read");
    let limits = Limits { encoded_bytes: file.len(), ..Limits::default() };
    assert!(decode(&file, None, &limits).is_ok());
}

#[test]
fn other_kinds_are_refused_by_name() {
    let kinds: [(&[u8], &str); 16] = [
        (b"GIF89a\x01\x00\x01\x00", "GIF"),
        (b"GIF87a", "GIF"),
        (b"BM\x46\x00\x00\x00", "BMP"),
        (b"II*\x00\x08\x00", "TIFF"),
        (b"MM\x00*\x00\x00", "TIFF"),
        (b"\x00\x00\x00\x1cftypavif\x00", "AVIF"),
        (b"\x00\x00\x00\x1cftypheic\x00", "HEIF"),
        (b"\x00\x00\x00\x1cftypisom\x00", "video"),
        (b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "SVG"),
        (b"\xef\xbb\xbf\n <SVG>", "SVG"),
        (b"<?xml version=\"1.0\"?><svg/>", "SVG"),
        (b"<!DOCTYPE svg>", "SVG"),
        (b"\x00\x00\x01\x00\x01\x00", "ICO"),
        (b"\xff\x0a\x00", "JPEG XL"),
        (b"\x00\x00\x00\x0cjP  \r\n", "JPEG 2000"),
        (b"%PDF-1.7", "PDF"),
    ];
    for (file, kind) in kinds {
        assert_eq!(refusal(file), Error::Refused { kind });
    }
    assert_eq!(refusal(b"GIF89a").to_string(), "GIF is not read: send PNG, JPEG or WebP");
}

#[test]
fn what_is_no_picture_is_refused() {
    assert_eq!(refusal(b""), Error::Empty);
    let texts: [&[u8]; 6] =
        [b"a", b"hello, world\n", b"\x89PNG\n", b"RIFF\x04\x00\x00\x00WAVE", b"\xff\xd8", &[0; 100]];
    for text in texts {
        assert!(matches!(refusal(text), Error::NoPicture { .. }), "{text:?}");
    }
    let message = refusal(b"\x00\x1bhello, world").to_string();
    assert_eq!(message, "the file is no PNG, JPEG or WebP picture: it begins `\\x00\\x1bhello,`");
    // The first bytes of each kind alone.
    let beginnings: [&[u8]; 3] = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\x04\x00\x00\x00WEBP"];
    for beginning in beginnings {
        let error = refusal(beginning);
        assert!(matches!(error, Error::Decoder { .. } | Error::Truncated { .. }), "{error:?}");
    }
}

/// The end of a thumbnail within a segment is not the end of the file.
#[test]
fn the_end_of_a_jpeg_file_stands_outside_of_segments() {
    let mut file = golden("formats/baseline.jpg");
    let segment = [0xff, 0xe1, 0, 6, 0xff, 0xd9, 0xff, 0xd9];
    file.splice(2..2, segment);
    assert!(decode(&file, None, &Limits::default()).is_ok());
    let bytes = file.len() as u64;
    let cut = |bytes: u64| Error::Truncated { kind: Kind::Jpeg, what: "its scans", wanted: bytes + 2, bytes };
    assert_eq!(refusal(&file[..file.len() - 2]), cut(bytes - 2));
    // Bytes after the end are not read.
    file.extend([0xff, 0xd8, 0xff, 0xe0]);
    assert!(decode(&file, None, &Limits::default()).is_ok());
}

/// A file that is cut off anywhere is refused, or has all of its pixels: a PNG file may lack its
/// last chunk.
#[test]
fn files_that_are_cut_off_are_refused() {
    let names = ["d.png", "formats/baseline.jpg", "formats/progressive.jpg", "formats/turned.jpg"];
    let webp = ["formats/lossy.webp", "formats/lossless.webp", "formats/glass.webp", "formats/turned.webp"];
    let mut seen = String::new();
    for name in names.into_iter().chain(webp) {
        let file = golden(name);
        let whole = decode(&file, None, &Limits::default()).expect(name);
        let read = (0..file.len()).filter(|end| match decode(&file[..*end], None, &Limits::default()) {
            Ok(pixels) => {
                assert_eq!(pixels, whole, "{name}: {end} of {} bytes", file.len());
                true
            }
            Err(Error::Panic { what, .. }) => panic!("{name}: {end} bytes: {what}"),
            Err(_) => false,
        });
        let read = read.count();
        let is_png = name.ends_with(".png");
        write!(seen, "{name}: {read} of {} beginnings are read; ", file.len()).expect("a text");
        assert!(if is_png { read < 20 } else { read == 0 }, "{name}: {read} beginnings are read");
    }
    println!("{seen}");
}

#[test]
fn narrow_pictures_are_refused() {
    let mut file = std::io::Cursor::new(Vec::new());
    DynamicImage::new_rgb8(201, 1).write_to(&mut file, ImageFormat::Png).expect("a PNG file");
    let picture = Picture::read(file.get_ref(), None, &tiny_rules(), &Limits::default(), None);
    assert_eq!(picture, Err(Error::Aspect { width: 201, height: 1, most: 200 }));
}
