//! Pages of SGLang's HiCache file back-end, version 0.5.23, as its own code writes and reads them:
//! `srt/mem_cache/hicache_storage.py`, `utils.py` and `pool_host/mha.py` there. Golden pages made
//! by that code are in `tests/sglang`.

use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tributary_planner::ModelShape;

use crate::failure::{unwritable, usage};

/// The version whose files these are.
const SGLANG: &str = "0.5.23";

/// Name of the file that describes a folder.
const MANIFEST: &str = "manifest.json";

/// Order of a page's numbers, after keys before values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// `[layers, page, kv_heads, head_dim]`.
    LayerFirst,
    /// `[page, layers, kv_heads, head_dim]`: SGLang's default.
    #[default]
    PageFirst,
    /// The bytes of [`LayerFirst`](Self::LayerFirst).
    PageFirstDirect,
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "layer_first" => Ok(Self::LayerFirst),
            "page_first" => Ok(Self::PageFirst),
            "page_first_direct" => Ok(Self::PageFirstDirect),
            _ => Err("layout must be page_first, layer_first or page_first_direct".to_owned()),
        }
    }
}

/// A folder of pages: everything that must be the same for all of them, and its prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: String,
    version: u32,
    sglang: String,
    model_name: String,
    /// Hash of the weights and their config: names of pages do not tell them apart.
    fingerprint: String,
    tp_size: usize,
    /// Rows of a page.
    pub page_size: usize,
    layout: Layout,
    dtype: String,
    /// Layers of the model.
    pub layers: usize,
    kv_heads: usize,
    head_dim: usize,
    suffixes: Vec<String>,
    prompts: Vec<Prompt>,
}

/// A prompt whose pages are there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Its tokens in the order of their positions.
    pub token_ids: Vec<u32>,
    /// The salt that a request must have to find them.
    pub cache_salt: Option<String>,
    /// Whether they are those of a full prefill, up to rounding.
    pub exact: bool,
    /// Method that computed them.
    pub method: String,
    /// Hashes of its pages, in order.
    pub pages: Vec<String>,
}

/// Keys and values of a prompt: layer by layer `[rows, 2, kv_heads, head_dim]`.
pub struct Pages<'a> {
    /// The folder that they belong in.
    pub shape: &'a Manifest,
    /// The layers.
    pub layers: &'a [Vec<u8>],
}

/// Hashes of the whole pages of a prompt: a chain of SHA-256 over little-endian ids. A salt seeds
/// it.
pub fn hashes(ids: &[u32], page_size: usize, cache_salt: Option<&str>) -> Vec<String> {
    let mut before: Option<[u8; 32]> = cache_salt.filter(|salt| !salt.is_empty()).map(|salt| {
        // No `extra_key`, then the salt with its length.
        let seed = Sha256::new_with_prefix(b"sglang-cache-namespace-v1").chain_update([0]).chain_update([1]);
        seed.chain_update((salt.len() as u64).to_le_bytes()).chain_update(salt).finalize().into()
    });
    let mut hashes = Vec::with_capacity(ids.len() / page_size);
    for page in ids.chunks_exact(page_size) {
        let mut hash = before.map_or_else(Sha256::new, Sha256::new_with_prefix);
        page.iter().for_each(|id| hash.update(id.to_le_bytes()));
        let hash: [u8; 32] = hash.finalize().into();
        hashes.push(hex(&hash));
        before = Some(hash);
    }
    hashes
}

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// End of a page's file name on a tensor-parallel rank, without `.bin`.
fn suffix(model: &str, rank: usize, ranks: usize) -> String {
    format!("_{}_{rank}_{ranks}", model.replace('/', "-"))
}

/// KV heads of a tensor-parallel rank. Where ranks are more than heads, several have the same.
fn heads_of(rank: usize, ranks: usize, heads: usize) -> Range<usize> {
    if ranks > heads {
        let head = rank / (ranks / heads);
        return head..head + 1;
    }
    let each = heads / ranks;
    rank * each..(rank + 1) * each
}

impl Manifest {
    /// A folder without prompts.
    ///
    /// # Errors
    /// Returns a line if ranks and heads do not fit.
    pub fn new(
        (model, fingerprint): (&str, [u8; 32]),
        (tp, page_size, layout): (usize, usize, Layout),
        (shape, dtype): (&ModelShape, &str),
    ) -> Result<Self, String> {
        let heads = shape.kv_heads;
        if tp % heads != 0 && heads % tp != 0 {
            return Err(format!("tp={tp}: {heads} KV heads are not shared evenly by as many ranks"));
        }
        let dtype = match dtype {
            "bf16" => "bfloat16",
            "f16" => "float16",
            _ => "float32",
        };
        Ok(Self {
            format: "tributary-sglang".to_owned(),
            version: 1,
            sglang: SGLANG.to_owned(),
            model_name: model.to_owned(),
            fingerprint: hex(&fingerprint),
            tp_size: tp,
            page_size,
            layout,
            dtype: dtype.to_owned(),
            layers: shape.layers,
            kv_heads: heads,
            head_dim: shape.head_dim,
            suffixes: (0..tp).map(|rank| suffix(model, rank, tp)).collect(),
            prompts: Vec::new(),
        })
    }

    /// The same with the prompts that are in the folder already.
    ///
    /// # Errors
    /// Returns an error if the folder is for other settings, or holds pages that nothing
    /// describes: SGLang would read wrong numbers without a word.
    pub fn joined_with(&self, folder: &Path) -> anyhow::Result<Self> {
        let refused = |what: String| usage(format!("--export-kv {}: {what}", folder.display()));
        let path = folder.join(MANIFEST);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let is_page = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|end| end == "bin");
                let has_pages =
                    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(|entry| is_page(&entry)));
                if has_pages {
                    return Err(refused(format!("it holds pages and no {MANIFEST}; name another folder")));
                }
                return Ok(self.clone());
            }
            Err(error) => return Err(refused(error.to_string())),
        };
        let there: Self = serde_json::from_str(&text).map_err(|error| refused(format!("{MANIFEST}: {error}")))?;
        let bare = |manifest: &Self| Self { prompts: Vec::new(), ..manifest.clone() };
        if bare(&there) != bare(self) {
            let fields = |manifest: &Self| serde_json::to_value(bare(manifest)).unwrap_or_default();
            let (there, here) = (fields(&there), fields(self));
            let differs = there.as_object().into_iter().flatten().find(|(name, value)| here[name.as_str()] != **value);
            let name = differs.map_or("version", |(name, _)| name.as_str());
            return Err(refused(format!("its pages have {name} {}, these {}", there[name], here[name])));
        }
        Ok(there)
    }

    /// The same with another prompt, in place of an equal one.
    #[must_use]
    pub fn with(mut self, prompt: Prompt) -> Self {
        self.prompts.retain(|there| (&there.token_ids, &there.cache_salt) != (&prompt.token_ids, &prompt.cache_salt));
        self.prompts.push(prompt);
        self
    }

    /// Writes it, after its pages.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let (path, text) = (folder.join(MANIFEST), serde_json::to_string(self)?);
        tributary_system::file::write_whole(&path, text.as_bytes()).map_err(|error| unwritable(&path, &error))
    }

    /// Bytes of a number.
    fn width(&self) -> usize {
        if self.dtype == "float32" { 4 } else { 2 }
    }
}

impl Pages<'_> {
    /// Writes the whole pages of a prompt for every rank. Returns how many were written, and how
    /// many were there: like SGLang, it keeps those.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or has another size.
    pub fn write(&self, folder: &Path, (ids, salt): (&[u32], Option<&str>)) -> anyhow::Result<(usize, usize)> {
        let (mut written, mut there) = (0, 0);
        for (page, hash) in hashes(ids, self.shape.page_size, salt).iter().enumerate() {
            let mut is_new = false;
            for rank in 0..self.shape.tp_size {
                let path = folder.join(format!("{hash}{}.bin", self.shape.suffixes[rank]));
                let bytes = self.bytes(page, rank);
                match std::fs::metadata(&path) {
                    Ok(found) if found.len() == bytes.len() as u64 => {}
                    Ok(found) => {
                        let (found, wanted) = (found.len(), bytes.len());
                        return Err(usage(format!("{}: {found} bytes, a page has {wanted}", path.display())));
                    }
                    Err(_) => {
                        let done = tributary_system::file::write_whole(&path, &bytes);
                        done.map_err(|error| unwritable(&path, &error))?;
                        is_new = true;
                    }
                }
            }
            *(if is_new { &mut written } else { &mut there }) += 1;
        }
        Ok((written, there))
    }

    /// The bytes of a page on a rank: all keys, then all values.
    fn bytes(&self, page: usize, rank: usize) -> Vec<u8> {
        let Manifest { page_size, layers, kv_heads, head_dim, tp_size, .. } = *self.shape;
        let head = head_dim * self.shape.width();
        let heads = heads_of(rank, tp_size, kv_heads);
        let rows = page * page_size..(page + 1) * page_size;
        let mut bytes = Vec::with_capacity(2 * layers * page_size * heads.len() * head);
        let mut add = |which: usize, layer: usize, row: usize| {
            let at = ((2 * row + which) * kv_heads + heads.start) * head;
            bytes.extend_from_slice(&self.layers[layer][at..at + heads.len() * head]);
        };
        for which in 0..2 {
            match self.shape.layout {
                Layout::PageFirst => {
                    rows.clone().for_each(|row| (0..layers).for_each(|layer| add(which, layer, row)));
                }
                Layout::LayerFirst | Layout::PageFirstDirect => {
                    (0..layers).for_each(|layer| rows.clone().for_each(|row| add(which, layer, row)));
                }
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use half::bf16;
    use serde_json::Value;

    use super::*;

    fn golden() -> Value {
        serde_json::from_str(include_str!("../../../tests/sglang/golden/pages.json")).expect("JSON")
    }

    fn ids(value: &Value) -> Vec<u32> {
        serde_json::from_value(value.clone()).expect("ids")
    }

    fn shape(golden: &Value) -> ModelShape {
        let number = |name: &str| golden[name].as_u64().expect(name) as usize;
        let (layers, kv_heads, head_dim) = (number("layers"), number("kv_heads"), number("head_dim"));
        ModelShape { layers, kv_heads, head_dim, ..any_shape() }
    }

    fn any_shape() -> ModelShape {
        ModelShape {
            layers: 1,
            hidden: 8,
            heads: 2,
            kv_heads: 2,
            head_dim: 4,
            intermediate: 8,
            experts: None,
            queries_grow: false,
            windows: None,
            vocab: 8,
            tied_embeddings: true,
            max_positions: 64,
            weight_bytes: 0,
            dtype_bytes: 4,
            kv_in_eight_bits: false,
            vision: None,
        }
    }

    #[test]
    fn hashes_are_those_of_sglangs_own_code() {
        let golden = golden();
        let mut compared = 0;
        for chain in golden["chains"].as_array().expect("chains") {
            // Nothing here sets an extra key or continues another chain.
            if !chain["extra_key"].is_null() || !chain["prior"].is_null() {
                continue;
            }
            let page_size = chain["page_size"].as_u64().expect("a size") as usize;
            let found = hashes(&ids(&chain["ids"]), page_size, chain["cache_salt"].as_str());
            assert_eq!(serde_json::json!(found), chain["hashes"], "{chain}");
            compared += 1;
        }
        assert!(compared >= 9, "{compared} chains");
    }

    #[test]
    fn names_are_those_of_sglangs_own_code() {
        let mut compared = 0;
        for name in golden()["names"].as_array().expect("names") {
            if ["pp", "cp", "mla"].iter().any(|setting| !name[*setting].is_null()) {
                continue;
            }
            let number = |field: &str, default| name[field].as_u64().unwrap_or(default) as usize;
            let model = name["model_name"].as_str().expect("a name");
            let found = format!("HASH{}.bin", suffix(model, number("tp_rank", 0), number("tp_size", 1)));
            assert_eq!(name["name"], found.as_str(), "{name}");
            compared += 1;
        }
        assert!(compared >= 4, "{compared} names");
    }

    /// The numbers of the golden pages, as the ranks hand them over.
    fn layers(golden: &Value, dtype: &str) -> Vec<Vec<u8>> {
        let number = |name: &str| golden[name].as_u64().expect(name) as usize;
        let (layers, heads, dim) = (number("layers"), number("kv_heads"), number("head_dim"));
        let tokens = golden["token_ids"].as_array().expect("ids").len();
        let bytes = |value: f32| match dtype {
            "bf16" => bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        let layer = |layer: usize| {
            let mut all = Vec::new();
            for token in 0..tokens {
                for which in 0..2 {
                    for place in 0..heads * dim {
                        let key = ((layer * tokens + token) * heads * dim + place) as f32;
                        all.extend(bytes(if which == 0 { key } else { -1.0 - key }));
                    }
                }
            }
            all
        };
        (0..layers).map(layer).collect()
    }

    #[test]
    fn pages_are_those_of_sglangs_own_code() {
        let golden = golden();
        let (model, ids) = (golden["model_name"].as_str().expect("a name"), ids(&golden["token_ids"]));
        let page_size = golden["page_size"].as_u64().expect("a size") as usize;
        let mut compared = 0;
        for case in golden["pages"].as_array().expect("pages") {
            let dtype = if case["dtype"] == "bfloat16" { "bf16" } else { "f32" };
            let (layout, tp) = (case["layout"].as_str().expect("a layout"), case["tp_size"].as_u64().expect("ranks"));
            let settings = (tp as usize, page_size, layout.parse().expect("a layout"));
            let manifest = Manifest::new((model, [0; 32]), settings, (&shape(&golden), dtype)).expect("it fits");
            let folder = tempfile::tempdir().expect("a folder");
            let layers = layers(&golden, dtype);
            let pages = Pages { shape: &manifest, layers: &layers };
            let salt = case["cache_salt"].as_str();
            assert_eq!(pages.write(folder.path(), (&ids, salt)).expect("written"), (2, 0));
            assert_eq!(pages.write(folder.path(), (&ids, salt)).expect("they are there"), (0, 2));
            let mut found = BTreeMap::new();
            for entry in std::fs::read_dir(folder.path()).expect("readable").flatten() {
                let bytes = std::fs::read(entry.path()).expect("readable");
                found.insert(entry.file_name().into_string().expect("text"), hex(&bytes));
            }
            let wanted: BTreeMap<String, String> = serde_json::from_value(case["files"].clone()).expect("files");
            assert_eq!(found, wanted, "{layout}, {dtype}, {tp} ranks");
            compared += 1;
        }
        assert!(compared >= 4, "{compared} folders");
    }

    #[test]
    fn a_folder_is_for_one_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let manifest = |page_size, dtype, weights| {
            Manifest::new(("a/b", [weights; 32]), (1, page_size, Layout::PageFirst), (&any_shape(), dtype))
                .expect("it fits")
        };
        let prompt = |id| Prompt {
            token_ids: vec![id],
            cache_salt: None,
            exact: true,
            method: "full".to_owned(),
            pages: Vec::new(),
        };
        let first = manifest(4, "f32", 1).joined_with(folder.path()).expect("it is empty").with(prompt(1));
        first.write(folder.path()).expect("written");
        let second = manifest(4, "f32", 1).joined_with(folder.path()).expect("the same server").with(prompt(2));
        assert_eq!(second.with(prompt(1)).prompts, [prompt(2), prompt(1)], "each prompt once");
        for (other, word) in [
            (manifest(8, "f32", 1), "page_size 4, these 8"),
            (manifest(4, "bf16", 1), "dtype"),
            (manifest(4, "f32", 2), "fingerprint"),
        ] {
            let why = other.joined_with(folder.path()).expect_err("another server").to_string();
            assert!(why.contains(word), "{why}");
        }
        let unknown = tempfile::tempdir().expect("a folder");
        std::fs::write(unknown.path().join("page.bin"), "").expect("written");
        assert!(manifest(4, "f32", 1).joined_with(unknown.path()).is_err(), "pages that nothing describes");
        assert!(
            Manifest::new(("m", [0; 32]), (3, 4, Layout::PageFirst), (&any_shape(), "f32")).is_err(),
            "two heads of three ranks"
        );
        assert_eq!([heads_of(3, 4, 2), heads_of(1, 2, 4)], [1..2, 2..4]);
    }
}
