//! Values that `doctor`'s own options allow.

use clap::Parser;

use tributary::doctor::DoctorArgs;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    doctor: DoctorArgs,
}

fn parse(arguments: &[&str]) -> Result<DoctorArgs, clap::Error> {
    Cli::try_parse_from([&["doctor"], arguments].concat()).map(|cli| cli.doctor)
}

#[test]
fn options_have_defaults_and_limits() {
    let args = parse(&[]).unwrap();
    assert_eq!(args.sizes, ["1MiB", "256MiB"].map(|text| text.parse().unwrap()));
    assert_eq!((args.min_busbw, args.repeat, args.skip_checks, args.json), (None, 5, false, false));
    let args = parse(&["--sizes", "4,8KiB", "--min-busbw", "0.5", "--repeat", "9"]).unwrap();
    assert_eq!(args.sizes, ["4B", "8KiB"].map(|text| text.parse().unwrap()));
    assert_eq!((args.min_busbw, args.repeat), (Some(0.5), 9));
    let refused =
        [["--sizes", ""], ["--sizes", "1MiB,"], ["--min-busbw", "0"], ["--min-busbw", "inf"], ["--repeat", "0"]];
    for arguments in refused {
        assert!(parse(&arguments).is_err(), "{arguments:?}");
    }
}

#[test]
fn an_all_gather_is_of_whole_values() {
    for text in ["0", "0MiB", "1", "6B", "4,7"] {
        let error = parse(&["--sizes", text]).unwrap_err().to_string();
        assert!(error.contains("is not a multiple of 4 bytes above zero"), "{text}: {error}");
    }
    let error = parse(&["--sizes", "1M"]).unwrap_err().to_string();
    assert!(error.contains("`1M` is not a size such as 256MiB; units are B, kB"), "{error}");
}
