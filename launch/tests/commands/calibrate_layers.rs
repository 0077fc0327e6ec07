//! `tributary quality --calibrate-layers`: a method is evaluated with other scoring layers, those
//! that are shown to be better are kept beside the model, and are taken from there.

use serde_json::Value;

use crate::kit::{copy_of_demo, demo, run};

/// At a small ratio the demo model's last two layers select better than those of depth 0.55 to
/// 0.65.
#[test]
fn better_layers_are_found_and_the_model_keeps_them() {
    let folder = copy_of_demo();
    let (model, out) = (folder.path().display().to_string(), folder.path().join("out").display().to_string());
    let quality = |tasks: &'static str, samples: &'static str, more: &[&str]| {
        let base = ["quality", "--suite", "hops", "--tasks", tasks, "--samples", samples, "--model", &model];
        run(&[&base[..], more].concat())
    };
    let request = crate::kit::request("vt2-0");
    let layers_of = |method: &str| {
        let base = ["prefill", "--model", &model, "--request", &request, "--json", "--max-tokens", "1", "--method"];
        crate::kit::json(&[&base[..], &[method]].concat())["settings"]["options"]["layers"].clone()
    };
    let usual = layers_of("infoflow");

    // Two requests show nothing.
    let (code, text, errors) = quality("vt3", "2", &["--calibrate-layers", "infoflow", "--out", &out]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{text}");
    assert!(text.contains("\n# no layers are shown to be better than the usual ones\n"), "{text}");
    assert!(!folder.path().join("layers.json").exists());

    let calibrated = ["--calibrate-layers", "infoflow", "--ratios", "0.05", "--out", &out, "--force"];
    let (code, text, errors) = quality("vt3,multivalue2", "30", &calibrated);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{text}");
    let table = text.split_once("# scoring layers of infoflow at 0.05, 60 requests\n").expect("the table").1;
    assert!(
        ["usual ", "0..1 ", "4..5 ", "2..5 ", "0..5 "].iter().all(|row| table.contains(&format!("\n  {row}"))),
        "{table}"
    );
    let written: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("layers.json")).expect("written"))
            .expect("JSON");
    let own = &written["methods"]["infoflow"];
    let layers = format!("{}..{}", own["first"], own["end"]);
    assert!(table.contains(&format!("# {layers} are shown to be better")), "{table}");
    assert!(own["score"].as_f64() > own["usual_score"].as_f64() && own["holm_p"].as_f64() < Some(0.05), "{own}");
    assert_eq!((&own["requests"], &own["suite"]), (&60.into(), &"hops".into()));

    // Answers with the usual layers of before do not go together with those of now.
    let (code, _, errors) =
        quality("vt3", "2", &["--calibrate-layers", "infoflow", "--ratios", "0.05", "--out", &out, "--resume"]);
    assert!(code == Some(64) && errors.contains("calibrations"), "{errors}");
    assert_ne!(layers_of("infoflow"), usual);
    assert_eq!(layers_of("infoflow"), layers_of(&format!("infoflow:layers={layers}")), "the model's own");
    assert_ne!(layers_of("infoflow:layers=0..1"), layers_of("infoflow"), "an option stands before it");

    let text = written.to_string().replace(&format!("\"end\":{}", own["end"]), "\"end\":9");
    std::fs::write(folder.path().join("layers.json"), text).expect("written");
    let (_, _, errors) = run(&["prefill", "--model", &model, "--request", &request, "--method", "full"]);
    assert!(errors.lines().count() == 1 && errors.contains("and the model has 5"), "{errors}");
}

#[test]
fn methods_without_layers_and_several_ratios_are_refused() {
    for (method, ratios, says) in [
        ("relay", "0.1", "relay: its score is no attention in some layers"),
        ("infoflow:layers=0..1", "0.1", "layers: is given twice"),
        ("infoflow", "0.1,0.2", "with one ratio, not 2"),
    ] {
        let base = ["quality", "--suite", "hops", "--tasks", "vt2", "--samples", "2", "--model", &demo()];
        let (code, text, errors) = run(&[&base[..], &["--calibrate-layers", method, "--ratios", ratios]].concat());
        assert_eq!((code, text.as_str(), errors.lines().count()), (Some(64), "", 1), "{errors}");
        assert!(errors.contains(says), "{errors}");
    }
}
