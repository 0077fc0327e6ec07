//! `prefill --export-kv`: keys and values of a prompt as the files of another program's cache.

mod sglang;

use std::path::PathBuf;
use std::str::FromStr;

use tributary_engine::{Answered, Engine, RunConfig};
use tributary_protocol::Plan;

use self::sglang::{Layout, Manifest, Pages, Prompt};
use crate::failure::{unwritable, usage};

/// Rows of a page where none are named: what SGLang's attention back-ends all take.
const PAGE_SIZE: usize = 64;

/// A folder of SGLang's file back-end, and the settings of the server that reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    folder: PathBuf,
    page_size: usize,
    layout: Layout,
    /// Tensor-parallel ranks of the server.
    tp: usize,
    /// The model's name there.
    model: Option<String>,
}

impl FromStr for Target {
    type Err = String;

    /// `sglang:DIR[,page-size=N][,layout=NAME][,tp=N][,model=NAME]`
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = "must be sglang:DIR[,page-size=N][,layout=NAME][,tp=N][,model=NAME]";
        let rest = text.strip_prefix("sglang:").ok_or(wanted)?;
        let mut parts = rest.split(',');
        let folder = parts.next().filter(|folder| !folder.is_empty()).ok_or(wanted)?;
        let mut this =
            Self { folder: folder.into(), page_size: PAGE_SIZE, layout: Layout::default(), tp: 1, model: None };
        for part in parts {
            let (key, value) = part.split_once('=').ok_or(wanted)?;
            let number = || value.parse().ok().filter(|number| (1..=65_536).contains(number));
            match key {
                "page-size" => this.page_size = number().ok_or("page-size must be from 1 to 65536")?,
                "tp" => this.tp = number().ok_or("tp must be from 1 to 65536")?,
                "layout" => this.layout = value.parse()?,
                "model" if !value.is_empty() => this.model = Some(value.to_owned()),
                _ => return Err(format!("`{part}`: {wanted}")),
            }
        }
        Ok(this)
    }
}

impl Target {
    /// Checks what needs no computation: the folder, and the heads of the server's ranks.
    ///
    /// # Errors
    /// Returns an error if the folder holds pages of other settings, or pages that nothing
    /// describes.
    pub fn check(&self, engine: &Engine<'_>, model: &str) -> anyhow::Result<()> {
        self.manifest(engine, model)?.joined_with(&self.folder)?;
        Ok(())
    }

    /// Writes the pages of an answered request, and releases what its ranks hold. Returns lines
    /// that say what was written.
    ///
    /// # Errors
    /// Returns an error if a rank fails or a file cannot be written.
    pub fn write(
        &self,
        engine: &mut Engine<'_>,
        answered: &Answered,
        (run_config, model): (&RunConfig, &str),
    ) -> anyhow::Result<String> {
        let plan = &answered.planned.plan;
        let order = plan.final_order().unwrap_or_else(|| answered.answer.outcome.order.clone());
        let ids = plan.placed_ids(&order);
        // The folder is described before it has pages: their own names and bytes do not say.
        std::fs::create_dir_all(&self.folder).map_err(|error| unwritable(&self.folder, &error))?;
        let manifest = self.manifest(engine, model)?.joined_with(&self.folder)?;
        manifest.write(&self.folder)?;
        let layers = (0..manifest.layers).map(|layer| engine.held_layer(plan, layer, run_config));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        engine.release_held(plan, run_config)?;
        let in_eight_bits = engine.shape().kv_in_eight_bits;
        let exact = plan.is_exact_as_placed() && !in_eight_bits;
        let method = run_config.settings.spec().to_string();
        let salt = (!exact).then(|| -> anyhow::Result<String> {
            let (selected, world) = (&answered.answer.outcome.selected, answered.planned.world);
            Ok(salt(
                plan,
                (&order, selected),
                &[&engine.model_hash()?, method.as_bytes(), &world.to_le_bytes(), &[u8::from(in_eight_bits)]],
            ))
        });
        let salt = salt.transpose()?;
        let pages = Pages { shape: &manifest, layers: &layers };
        let (written, there) = pages.write(&self.folder, (&ids, salt.as_deref()))?;
        let hashes = sglang::hashes(&ids, manifest.page_size, salt.as_deref());
        let prompt = Prompt { token_ids: ids, cache_salt: salt, exact, method, pages: hashes };
        let told = told(&prompt, (written, there), manifest.page_size);
        manifest.with(prompt).write(&self.folder)?;
        Ok(told)
    }

    fn manifest(&self, engine: &Engine<'_>, model: &str) -> anyhow::Result<Manifest> {
        let (shape, dtype) = (engine.shape(), engine.dtype());
        let name = self.model.as_deref().unwrap_or(model);
        let manifest =
            Manifest::new((name, engine.model_hash()?), (self.tp, self.page_size, self.layout), (&shape, dtype));
        manifest.map_err(|what| usage(format!("--export-kv: {what}")))
    }
}

/// What was written, in lines.
fn told(prompt: &Prompt, (written, there): (usize, usize), page_size: usize) -> String {
    let Prompt { token_ids, cache_salt, .. } = prompt;
    let (tokens, pages) = (token_ids.len(), token_ids.len() / page_size);
    let mut told =
        format!("exported   {pages} pages of {page_size} of {tokens} tokens ({written} written, {there} were there)\n");
    match cache_salt {
        Some(salt) => told += &format!("cache_salt {salt}: a request without it must not find them\n"),
        None => told += "cache_salt none: they are exact\n",
    }
    told
}

/// The salt of approximate keys and values: of everything that they follow from. That is the model,
/// the method and the number of ranks (`of`), the exchange, all tokens, the bounds and the order of
/// the chunks, the pieces of the lead, and the recomputed rows.
fn salt(plan: &Plan, (order, selected): (&[u32], &[u32]), of: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| _ = hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    of.iter().for_each(|bytes| add(bytes));
    add(plan.exchange.name().as_bytes());
    let rows: Vec<u32> = plan.chunks.iter().map(|chunk| chunk.rows() as u32).collect();
    for numbers in [&plan.all_ids()[..], &[plan.prefix_tokens() as u32], &plan.lead, &rows, order, selected] {
        add(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
    }
    format!("tributary-{}", hasher.finalize().to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_a_folder_and_the_servers_settings() {
        let target: Target =
            "sglang:/a/b,page-size=16,layout=layer_first,tp=2,model=org/name".parse().expect("a target");
        assert_eq!((target.page_size, target.layout, target.tp), (16, Layout::LayerFirst, 2));
        assert_eq!((target.folder.to_str(), target.model.as_deref()), (Some("/a/b"), Some("org/name")));
        let plain: Target = "sglang:pages".parse().expect("a folder alone");
        assert_eq!((plain.page_size, plain.layout, plain.tp, plain.model), (64, Layout::PageFirst, 1, None));
        for wrong in [
            "",
            "pages",
            "sglang:",
            "vllm:pages",
            "sglang:a,page-size=0",
            "sglang:a,page-size=x",
            "sglang:a,tp",
            "sglang:a,layout=page_head",
            "sglang:a,dtype=f32",
            "sglang:a,model=",
        ] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
