//! A small model that reads for another one: its sizes, or the folder that it resumes from, and its
//! objective.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tributary_model::Config;
use tributary_system::file::write_whole;

use crate::error::{Error, Result};
use crate::sample::Sample;

/// Files of a model folder, besides its weights and its config, that are copied into the trained
/// model's folder.
const BESIDE: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];

/// Training objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The next token of prompts and of the model's answers to them.
    Language,
    /// The rows of a context that the model's query attends to.
    Select,
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "language" => Ok(Self::Language),
            "select" => Ok(Self::Select),
            _ => Err("`language` and `select` are objectives".to_owned()),
        }
    }
}

/// The sizes of a model that begins with random weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads, of hidden / heads dims.
    pub heads: usize,
    /// Width of the MLP.
    pub intermediate: usize,
}

/// A small model that is to be learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    /// Training objective.
    pub objective: Objective,
    /// Its sizes, where it begins with random weights.
    pub sizes: Sizes,
    /// Folder that it resumes from, where it has weights already.
    pub start: Option<PathBuf>,
    /// The folder of the model that it is to read for: the tokenizer is its.
    pub beside: PathBuf,
}

impl Reader {
    /// Checks the user's values.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] with the option's name.
    pub fn check(&self) -> Result<()> {
        let Sizes { layers, hidden, heads, intermediate } = self.sizes;
        let refused = |what: String| Err(Error::Usage(what));
        for (option, size) in
            [("--layers", layers), ("--hidden", hidden), ("--heads", heads), ("--intermediate", intermediate)]
        {
            if size == 0 {
                return refused(format!("{option} 0: must be at least 1"));
            }
        }
        match hidden.is_multiple_of(2 * heads) {
            true => Ok(()),
            false => refused(format!("--heads {heads}: --hidden {hidden} is no even number of dims for each of them")),
        }
    }

    /// Its config for a main model: that of the folder it resumes from, or one of its sizes with
    /// the model's vocabulary and positions.
    ///
    /// # Errors
    /// Returns an error if the config is invalid.
    pub fn config(&self, model: &Config) -> Result<Config> {
        Ok(match &self.start {
            Some(folder) => Config::read(folder)?,
            None => Config::parse(&self.drawn_config(model).to_string(), Path::new("config.json"))?,
        })
    }

    /// `config.json` of the sizes.
    fn drawn_config(&self, model: &Config) -> serde_json::Value {
        let Sizes { layers, hidden, heads, intermediate } = self.sizes;
        serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": model.vocab,
            "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": hidden / heads,
            "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": model.max_positions,
            "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true,
            "bos_token_id": model.bos, "eos_token_id": model.eos,
        })
    }

    /// Checks that it knows the model's tokens and has positions for the texts that it reads.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] with the option's or the sample's name, and an error if the config
    /// is invalid.
    pub fn fits(&self, model: &Config, samples: &[Sample]) -> Result<()> {
        let config = self.config(model)?;
        let refused = |what: String| match &self.start {
            Some(folder) => Err(Error::Usage(format!("--aux-model {}: {what}", folder.display()))),
            None => Err(Error::Usage(what)),
        };
        if config.vocab < model.vocab {
            return refused(format!("it knows {} tokens, and the model {}", config.vocab, model.vocab));
        }
        for (number, sample) in samples.iter().enumerate() {
            if sample.chunks.len() < 2 || sample.query.is_empty() {
                return Err(Error::Usage(format!("sample {number}: selecting wants two documents and a question")));
            }
            let longest = self.longest(sample);
            if longest > config.max_positions {
                return refused(format!(
                    "sample {number}: {longest} tokens to read at once; it has {} positions",
                    config.max_positions
                ));
            }
        }
        Ok(())
    }

    /// The longest prompt that it reads of a sample.
    pub fn longest(&self, sample: &Sample) -> usize {
        let chunks = sample.chunks.iter().map(Vec::len).max().unwrap_or(0);
        match self.objective {
            Objective::Language => sample.prompt().len() + sample.answer_tokens,
            Objective::Select => 1 + chunks + sample.query.len(),
        }
    }

    /// Writes the files of a model folder other than the weights.
    ///
    /// # Errors
    /// Returns [`Error::Write`] if the disk is full, or if a file to copy cannot be read.
    pub fn write(&self, folder: &Path, model: &Config) -> Result<()> {
        let copied = self.start.as_ref().unwrap_or(&self.beside);
        let at = |path: PathBuf| move |cause: std::io::Error| Error::Write { path: path.clone(), cause };
        let mut config = match &self.start {
            Some(start) => {
                let text = std::fs::read(start.join("config.json")).map_err(at(start.join("config.json")))?;
                serde_json::from_slice(&text).expect("it was parsed before")
            }
            None => self.drawn_config(model),
        };
        config["torch_dtype"] = "float32".into();
        let config = serde_json::to_vec_pretty(&config).expect("a config is JSON");
        write_whole(&folder.join("config.json"), &config).map_err(at(folder.join("config.json")))?;
        for name in BESIDE {
            let (from, into) = (copied.join(name), folder.join(name));
            if from.exists() {
                let bytes = std::fs::read(&from).map_err(at(from))?;
                write_whole(&into, &bytes).map_err(at(into))?;
            }
        }
        Ok(())
    }
}
