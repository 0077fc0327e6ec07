//! Kinds of files: each is decoded as Pillow decodes it, turned as its EXIF data says, and named by
//! its pixels alone.

use image::codecs::webp::WebPEncoder;
use image::{DynamicImage, ExtendedColorType, ImageBuffer, ImageFormat};
use safetensors::SafeTensors;
use tributary_pictures::{Error, Header, Kind, Limits, Picture, Pixels, decode};

use super::{golden, tiny_rules};

fn file(name: &str) -> Vec<u8> {
    golden(&format!("formats/{name}"))
}

fn decoded(name: &str) -> Pixels {
    decode(&file(name), None, &Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Largest difference to Pillow's pixels by file, in levels. JPEG leaves two things to decoders:
/// the rounding of the inverse transform, and how colour planes of half the size are enlarged.
const FILES: [(&str, u8); 19] = [
    ("baseline.jpg", 8),
    ("progressive.jpg", 8),
    ("full-colour.jpg", 2),
    ("grey.jpg", 1),
    ("cmyk.jpg", 1),
    ("turned.jpg", 8),
    ("turned-1.png", 0),
    ("turned-2.png", 0),
    ("turned-3.png", 0),
    ("turned-4.png", 0),
    ("turned-5.png", 0),
    ("turned.png", 0),
    ("turned-7.png", 0),
    ("turned-8.png", 0),
    ("turned.webp", 0),
    ("lossy.webp", 0),
    ("lossless.webp", 0),
    ("palette.png", 0),
    ("bits.png", 0),
];

#[test]
fn files_are_decoded_as_pillow_does() {
    let expected = file("formats.safetensors");
    let tensors = SafeTensors::deserialize(&expected).expect("tensors");
    assert_eq!(tensors.len(), FILES.len());
    for (name, tolerance) in FILES {
        let wanted = tensors.tensor(name).expect("pixels");
        let pixels = decoded(name);
        assert_eq!(wanted.shape(), [pixels.height as usize, pixels.width as usize, 3], "{name}");
        let apart = pixels.rgb.iter().zip(wanted.data()).map(|(own, wanted)| own.abs_diff(*wanted));
        let most = apart.clone().max().unwrap_or(0);
        println!("{name}: at most {most} levels, {} of {} bytes", apart.filter(|a| *a > 0).count(), pixels.rgb.len());
        assert!(most <= tolerance, "{name}: {most} levels");
        let header = Header::read(&file(name), None, &Limits::default()).expect("a header");
        assert_eq!((header.width, header.height), (pixels.width, pixels.height), "{name}");
    }
}

#[test]
fn animations_are_refused() {
    for (name, kind) in [("moving.png", Kind::Png), ("moving.webp", Kind::Webp)] {
        let error = decode(&file(name), None, &Limits::default());
        assert_eq!(error, Err(Error::Animated { kind }), "{name}");
        assert_eq!(error.expect_err(name).to_string(), format!("the {kind} picture is an animation: send one frame"));
    }
}

#[test]
fn transparent_webp_lies_on_white() {
    let (glass, plain) = (decoded("glass.webp"), decoded("lossy.webp"));
    // The opacity rises from 0 in the first row to 255 in the last.
    let row = |pixels: &Pixels, row: usize| pixels.rgb[row * 120..][..120].to_vec();
    assert!(row(&glass, 0).iter().all(|sample| *sample >= 250), "{:?}", row(&glass, 0));
    let apart = row(&glass, 27).into_iter().zip(row(&plain, 27)).map(|(a, b)| a.abs_diff(b));
    assert!(apart.max() <= Some(16));
}

#[test]
fn the_declared_type_must_be_the_files() {
    let (png, jpeg, webp) = (golden("a.png"), file("baseline.jpg"), file("lossy.webp"));
    let own = [(&png, "image/png"), (&jpeg, "image/jpeg"), (&jpeg, "image/jpg"), (&webp, "image/webp")];
    for (file, declared) in own {
        for declared in [declared.to_owned(), declared.to_uppercase(), String::new()] {
            assert!(decode(file, Some(&declared), &Limits::default()).is_ok(), "{declared}");
        }
    }
    let others =
        [(&png, "image/jpeg"), (&png, "image/jpg"), (&jpeg, "image/png"), (&webp, "image/gif"), (&png, "text/html")];
    for (file, declared) in others {
        let found = Kind::of(file).expect("a picture");
        let error = Error::Declared { declared: declared.to_owned(), found };
        assert_eq!(decode(file, Some(declared), &Limits::default()), Err(error), "{declared}");
    }
    let error = decode(&png, Some("image/jpeg"), &Limits::default()).expect_err("another type").to_string();
    assert_eq!(error, "the picture is declared as `image/jpeg`, but its bytes are PNG");
}

/// A PNG file.
fn png(image: &DynamicImage) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    image.write_to(&mut file, ImageFormat::Png).expect("a PNG file");
    file.into_inner()
}

#[test]
fn samples_of_16_bits_are_scaled() {
    let deep = |samples: &[u16]| samples.to_vec();
    let grey = ImageBuffer::from_raw(3, 1, deep(&[0, 32768, 65535])).expect("a grey picture");
    let glass = ImageBuffer::from_raw(2, 1, deep(&[514, 65535, 514, 0])).expect("grey and opacity");
    let colour = ImageBuffer::from_raw(1, 1, deep(&[257, 514, 65278])).expect("a colour");
    let clear = ImageBuffer::from_raw(1, 2, deep(&[257, 514, 771, 65535, 1, 2, 3, 0])).expect("colour and opacity");
    let cases: [(DynamicImage, &[u8]); 4] = [
        (DynamicImage::ImageLuma16(grey), &[0, 0, 0, 128, 128, 128, 255, 255, 255]),
        (DynamicImage::ImageLumaA16(glass), &[2, 2, 2, 255, 255, 255]),
        (DynamicImage::ImageRgb16(colour), &[1, 2, 254]),
        (DynamicImage::ImageRgba16(clear), &[1, 2, 3, 255, 255, 255]),
    ];
    for (image, wanted) in cases {
        let pixels = decode(&png(&image), None, &Limits::default()).expect("pixels");
        assert_eq!(pixels.rgb, wanted, "{:?}", image.color());
    }
}

/// A PNG and a lossless WebP file of some pixels.
fn encodings(pixels: &Pixels) -> [Vec<u8>; 2] {
    let (width, height) = (pixels.width, pixels.height);
    let image = ImageBuffer::from_raw(width, height, pixels.rgb.clone()).expect("three bytes a pixel");
    let mut webp = Vec::new();
    WebPEncoder::new_lossless(&mut webp)
        .encode(&pixels.rgb, width, height, ExtendedColorType::Rgb8)
        .expect("a WebP file");
    [png(&DynamicImage::ImageRgb8(image)), webp]
}

#[test]
fn a_picture_is_named_by_its_pixels() {
    let named = |file: &[u8], secret: Option<&[u8; 32]>| {
        Picture::read(file, None, &tiny_rules(), &Limits::default(), secret).expect("a picture").hash
    };
    // Picture f is not resized, so that each pixel counts.
    let pixels = decode(&golden("f.png"), None, &Limits::default()).expect("pixels");
    let [png, webp] = encodings(&pixels);
    assert_ne!(png, golden("f.png"), "another encoding");
    let hash = named(&golden("f.png"), None);
    assert_eq!([named(&png, None), named(&webp, None)], [hash; 2]);
    for place in [0, pixels.rgb.len() / 2, pixels.rgb.len() - 1] {
        let mut other = pixels.clone();
        other.rgb[place] ^= 1;
        assert_ne!(named(&encodings(&other)[0], None), hash, "byte {place}");
    }
    // The same bytes in another grid are another picture.
    let turned = Pixels { width: pixels.height, height: pixels.width, rgb: pixels.rgb.clone() };
    let turned = Picture::of(turned, &tiny_rules(), None).expect("a picture");
    assert_eq!((turned.rows, turned.columns, turned.rgb.len()), (3, 2, pixels.rgb.len()));
    assert_ne!(turned.hash, hash);
    // A secret names the same picture otherwise.
    let keyed = [named(&png, Some(&[1; 32])), named(&webp, Some(&[1; 32])), named(&png, Some(&[2; 32]))];
    assert_eq!(keyed[0], keyed[1]);
    assert!(keyed[0] != hash && keyed[2] != hash && keyed[0] != keyed[2]);
}

/// The name is BLAKE3's of this context and these bytes, and stays so: stored chunks are found by
/// it.
#[test]
fn the_name_is_a_hash_of_grid_and_pixels() {
    let pixels = decode(&golden("f.png"), None, &Limits::default()).expect("pixels");
    let bytes = [&[2, 0, 0, 0, 3, 0, 0, 0][..], &pixels.rgb].concat();
    let wanted = blake3::derive_key("tributary image 1", &bytes);
    let keyed = blake3::keyed_hash(&[7; 32], &[b"tributary image 1", bytes.as_slice()].concat());
    let named = |secret| Picture::of(pixels.clone(), &tiny_rules(), secret).expect("a picture").hash;
    assert_eq!(named(None), wanted);
    assert_eq!(named(Some(&[7; 32])), *keyed.as_bytes());
}
