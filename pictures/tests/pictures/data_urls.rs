//! `data:` URLs: those that are read, and the words with which others are refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tributary_pictures::{Encoded, Error, Limits, Picture, data_url};

use super::{golden, tiny_rules};

fn read(url: &str) -> Result<Encoded, Error> {
    data_url(url, &Limits::default())
}

fn refusal(url: &str) -> String {
    read(url).expect_err(url).to_string()
}

#[test]
fn files_are_read() {
    let declared = |name: &str| Some(name.to_owned());
    let good = [
        ("data:image/png;base64,AAEC/w==", declared("image/png"), &[0, 1, 2, 255][..]),
        ("data:image/png;base64,AAEC", declared("image/png"), &[0, 1, 2]),
        ("data:image/png;base64,AAE=", declared("image/png"), &[0, 1]),
        ("DATA:Image/PNG;BASE64,AAEC", declared("Image/PNG"), &[0, 1, 2]),
        ("data:image/png;name=a.png;base64,+/+/", declared("image/png"), &[0xfb, 0xff, 0xbf]),
        ("data:;base64,AAEC", None, &[0, 1, 2]),
        ("data:image/png;base64,", declared("image/png"), &[]),
    ];
    for (url, declared, file) in good {
        assert_eq!(read(url), Ok(Encoded { declared, file: file.to_vec() }), "{url}");
    }
    let url = format!("data:image/png;base64,{}", STANDARD.encode(golden("a.png")));
    let encoded = read(&url).expect("a picture");
    let limits = Limits::default();
    let picture = Picture::read(&encoded.file, encoded.declared.as_deref(), &tiny_rules(), &limits, None);
    assert_eq!(picture.map(|picture| (picture.rows, picture.columns)), Ok((4, 6)));
}

#[test]
fn nothing_is_fetched() {
    let others = [
        "http://127.0.0.1/a.png",
        "https://example.org/a.png",
        "file:///etc/passwd",
        "ftp://example.org/a.png",
        "a.png",
        "",
        " data:image/png;base64,AAEC",
        "dat",
        "données:image",
    ];
    for url in others {
        assert_eq!(refusal(url), "pictures are not fetched: send a data: URL", "{url}");
    }
}

#[test]
fn what_is_no_base64_is_refused() {
    let letter = |url: &str| match read(url) {
        Err(Error::Base64Letter { byte, place }) => (byte, place),
        other => panic!("{url}: {other:?}"),
    };
    assert_eq!(letter("data:image/png;base64,AA C"), (b' ', 2));
    assert_eq!(letter("data:image/png;base64,AAEC\nAAEC"), (b'\n', 4));
    assert_eq!(letter("data:image/png;base64,AAEC\r\n"), (b'\r', 4));
    assert_eq!(letter("data:image/png;base64,AA-_"), (b'-', 2));
    assert_eq!(letter("data:image/png;base64,%2BAAA"), (b'%', 0));
    assert_eq!(letter("data:image/png;base64,éAE"), (0xc3, 0));
    let ends = ["AAE", "AA", "A", "AAECA", "AAE==", "AA=", "AA==AAEC", "=AAA", "A===", "====", "AAEC=", "AAF=", "AB=="];
    for letters in ends {
        let error = read(&format!("data:image/png;base64,{letters}"));
        assert_eq!(error, Err(Error::Base64End { letters: letters.len() }), "{letters}");
    }
}

#[test]
fn urls_without_base64_are_refused() {
    for url in ["data:image/png,AAEC", "data:image/png;base64", "data:,AAEC", "data:image/png;base65,AA", "data:"] {
        assert!(refusal(url).starts_with("a picture's data: URL begins `data:image/png;base64,`, this one `data:"));
    }
    let long = format!("data:{};base64,AAEC", "a".repeat(128));
    let quoted = format!("data:{}..", "a".repeat(35));
    assert_eq!(read(&long), Err(Error::DataUrl { begins: quoted }));
    assert!(refusal("data:\n\u{1b}[2J,").ends_with("`data:\\n\\u{1b}[2J`"));
}

/// The length is known from the text: one byte more than the limit is refused, padding counted.
#[test]
fn long_files_are_refused_before_they_are_decoded() {
    let limits = Limits { encoded_bytes: 4, ..Limits::default() };
    for (file, fits) in [(vec![0; 3], true), (vec![0; 4], true), (vec![0; 5], false), (vec![0; 6], false)] {
        let found = data_url(&format!("data:;base64,{}", STANDARD.encode(&file)), &limits);
        let wanted = match fits {
            true => Ok(Encoded { declared: None, file: file.clone() }),
            false => Err(Error::EncodedBytes { bytes: file.len(), most: 4 }),
        };
        assert_eq!(found, wanted);
    }
    // Letters outside of the alphabet are not looked at.
    let long = data_url(&format!("data:;base64,{}", "!".repeat(1 << 20)), &limits);
    assert_eq!(long, Err(Error::EncodedBytes { bytes: 786_432, most: 4 }));
}
