//! The text that a model's chat template puts around a request: its head, before the documents, what stands between earlier turns
//! of the conversation, and its tail, after the query. Knows no tokens.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Environment, ErrorKind, context};
use serde_json::{Map, Value};

use crate::request::{Speaker, json_error, read};
use crate::{Error, Result, date};

/// Stand for the system text, the documents and the query while the template is rendered, so that what the user wrote is
/// never mistaken for what the template says. No template holds them.
const SYSTEM: &str = "@@TRIBUTARY-SYSTEM@@";
const DOCUMENTS: &str = "@@TRIBUTARY-DOCUMENTS@@";
const QUERY: &str = "@@TRIBUTARY-QUERY@@";

/// Texts of special tokens that templates may use.
const SPECIAL_TOKENS: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

/// A model's chat template.
#[derive(Debug, Clone)]
pub struct Template {
    source: String,
    /// Name and text of special tokens.
    tokens: Vec<(&'static str, String)>,
}

/// What stands around documents and query: the template's own text, and the user's system text within it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// The template's text before the system text; where there is none, before the first document.
    pub opening: String,
    /// The system text, without the space around it; empty where there is none.
    pub system: String,
    /// The template's text between the system text and the first document.
    pub lead: String,
    /// The text before the first of the earlier turns; a template has none, since documents and first turn are one message.
    pub introduction: String,
    /// The text behind each of the earlier turns.
    pub between: Vec<String>,
    /// The template's text after the query. It ends where the answer begins.
    pub tail: String,
    /// Whether the system text stands at the beginning of the first message, because the template takes no system message.
    pub system_in_user: bool,
}

/// A part of a prompt, by who wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPart<'a> {
    /// Text of the chat template: its marks count.
    Template(&'a str),
    /// Text of the user: what looks like a mark is text.
    User(&'a str),
}

impl PromptPart<'_> {
    /// The text.
    pub fn text(&self) -> &str {
        match self {
            PromptPart::Template(text) | PromptPart::User(text) => text,
        }
    }
}

impl Template {
    /// Reads a model folder's template: `chat_template.jinja`, or `chat_template` in `tokenizer_config.json` (of several,
    /// the one named `default`). None if the model has none.
    ///
    /// # Errors
    /// [`Error::Unreadable`], [`Error::Json`] for files that are there and broken, [`Error::Template`] if there are several
    /// templates and none is the default.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>> {
        let config_path = folder.join("tokenizer_config.json");
        let config: Map<String, Value> = if config_path.exists() {
            serde_json::from_str(&read(&config_path)?).map_err(|error| json_error(&error, &config_path))?
        } else {
            Map::new()
        };
        let file = folder.join("chat_template.jinja");
        let source = if file.exists() { Some(read(&file)?) } else { named(&config)? };
        let tokens = SPECIAL_TOKENS.iter().filter_map(|name| Some((*name, token(&config, name)?)));
        Ok(source.map(|source| Self { source, tokens: tokens.collect() }))
    }

    /// A template from its parts.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Self {
        let tokens = vec![("bos_token", bos_token.to_owned()), ("eos_token", eos_token.to_owned())];
        Self { source: source.to_owned(), tokens }
    }

    /// Renders a conversation of a system message, if there is one, and the user's message: documents, then query. Where
    /// the template takes no system message, or drops it, the text stands in front of the documents instead.
    ///
    /// # Errors
    /// [`Error::Template`] if the template is broken, refuses the conversation, or does not repeat the user's message
    /// exactly once and unchanged.
    pub fn frame(&self, system: Option<&str>) -> Result<Frame> {
        self.frame_of(system, &[])
    }

    /// The same with earlier turns by these speakers. The documents stand at the beginning of the first message behind the system's,
    /// so that the head is the same in every turn of a conversation.
    ///
    /// # Errors
    /// As [`frame`](Self::frame); a template may want speakers to alternate.
    pub fn frame_of(&self, system: Option<&str>, earlier: &[Speaker]) -> Result<Frame> {
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let Some(system) = system else {
            return split(&self.render(None, "", earlier, unix_s)?, None, earlier.len());
        };
        // Only the space around the system text is shown to the template, which may trim it.
        let text = system.trim();
        let (before, after) = system.split_at(system.len() - system.trim_start().len());
        let stand_in = format!("{before}{SYSTEM}{}", &after[text.len()..]);
        let with_system = self.render(Some(&stand_in), "", earlier, unix_s);
        if let Ok(frame) = with_system.and_then(|rendered| split(&rendered, Some(text), earlier.len())) {
            return Ok(frame);
        }
        let rendered = self.render(None, &format!("{stand_in}\n\n"), earlier, unix_s)?;
        let frame = split(&rendered, Some(text), earlier.len())?;
        Ok(Frame { system_in_user: true, ..frame })
    }

    /// All text in which a mark of the template can be found: as it stands in the source, and as it comes out.
    pub(crate) fn written(&self) -> String {
        let rendered = [None, Some("system")].into_iter().filter_map(|system| self.frame(system).ok());
        let rendered = rendered.map(|frame| format!("{}\n{}\n", frame.head(), frame.tail)).collect::<String>();
        let tokens = self.tokens.iter().map(|(_, text)| format!("{text}\n")).collect::<String>();
        format!("{}\n{tokens}{rendered}", self.source)
    }

    fn render(&self, system: Option<&str>, before: &str, earlier: &[Speaker], unix_s: u64) -> Result<String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| {
            Err::<String, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |pattern: String| {
            date::format(&pattern, unix_s)
                .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        let mut messages = Vec::new();
        if let Some(system) = system {
            messages.push(context! { role => "system", content => system });
        }
        let mut start = format!("{before}{DOCUMENTS}");
        for (index, speaker) in earlier.iter().enumerate() {
            let content = std::mem::take(&mut start) + &turn(index);
            messages.push(context! { role => speaker.name(), content => content });
        }
        messages.push(context! { role => "user", content => start + QUERY });
        let values = context! {
            messages => messages,
            add_generation_prompt => true,
            tools => None::<String>,
            documents => None::<String>,
        };
        let tokens: minijinja::Value = self.tokens.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let template = environment.template_from_str(&self.source);
        let rendered = template.and_then(|template| template.render(context! { ..values, ..tokens }));
        rendered.map_err(|error| Error::Template(one_line(&error)))
    }
}

impl Frame {
    /// Everything before the first document, by who wrote it.
    pub fn head_parts(&self) -> [PromptPart<'_>; 3] {
        [PromptPart::Template(&self.opening), PromptPart::User(&self.system), PromptPart::Template(&self.lead)]
    }

    /// Everything before the first document.
    pub fn head(&self) -> String {
        self.head_parts().iter().map(PromptPart::text).collect()
    }
}

/// Stands for the earlier turn of that number while the template is rendered.
fn turn(index: usize) -> String {
    format!("@@TRIBUTARY-TURN-{index}@@")
}

/// What a rendered conversation has around the documents, so many earlier turns, and the query; `system` is the text that was
/// stood for, if there is one.
fn split(rendered: &str, system: Option<&str>, earlier: usize) -> Result<Frame> {
    let refused = |what: &str| Error::Template(format!("does not repeat the {what} once and unchanged"));
    let once = |mark: &str| rendered.matches(mark).count() == 1;
    let marks: Vec<String> = (0..earlier).map(turn).chain([QUERY.to_owned()]).collect();
    let whole = once(DOCUMENTS) && marks.iter().all(|mark| once(mark));
    let first = format!("{DOCUMENTS}{}", marks[0]);
    let (head, mut tail) = rendered.split_once(&first).filter(|_| whole).ok_or_else(|| refused("user's message"))?;
    let mut between = Vec::new();
    for mark in &marks[1..] {
        let (before, behind) = tail.split_once(mark).ok_or_else(|| refused("messages"))?;
        between.push(before.to_owned());
        tail = behind;
    }
    let (opening, lead) = match system {
        Some(_) if rendered.matches(SYSTEM).count() != 1 => return Err(refused("system text")),
        Some(_) => head.split_once(SYSTEM).ok_or_else(|| refused("system text before the user's message"))?,
        None => (head, ""),
    };
    Ok(Frame {
        opening: opening.to_owned(),
        system: system.unwrap_or_default().to_owned(),
        lead: lead.to_owned(),
        introduction: String::new(),
        between,
        tail: tail.to_owned(),
        system_in_user: false,
    })
}

/// The template in a tokenizer's configuration: a string, or a list of named ones.
fn named(config: &Map<String, Value>) -> Result<Option<String>> {
    let several = match config.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(source)) => return Ok(Some(source.clone())),
        Some(other) => other.as_array(),
    };
    let default = several.into_iter().flatten().find(|entry| entry["name"] == "default");
    match default.and_then(|entry| entry["template"].as_str()) {
        Some(source) => Ok(Some(source.to_owned())),
        None => Err(Error::Template("several, and none is named `default`".into())),
    }
}

/// A special token's text: a string, or an object with `content`.
fn token(config: &Map<String, Value>, name: &str) -> Option<String> {
    let value = config.get(name)?;
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

fn one_line(error: &minijinja::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const QWEN_LIKE: &str = "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0]['content'] \
        + '<|im_end|>\\n' }}\n{%- endif %}\n{%- for message in messages %}\n    {%- if message.role == 'user' and \
        message.content is string and not message.content.startswith('<tool>') %}\n        \
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n    {%- endif %}\n{%- endfor %}\n\
        {%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";

    const LLAMA_LIKE: &str = "{{- bos_token }}\n{%- set day = strftime_now('%Y') %}\n{%- if messages[0].role == 'system' %}\n\
        {%- set system = messages[0].content | trim %}\n{%- set messages = messages[1:] %}\n{%- else %}\n\
        {%- set system = '' %}\n{%- endif %}\n{{- '<|start|>system<|end|>' + day + ' ' + system + '<|eot|>' }}\n\
        {%- for message in messages %}\n{{- '<|start|>' + message['role'] + '<|end|>' + message['content'] | trim + '<|eot|>' }}\n\
        {%- endfor %}\n{%- if add_generation_prompt %}\n{{- '<|start|>assistant<|end|>' }}\n{%- endif %}\n";

    const MISTRAL_LIKE: &str = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != \
        (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}\
        {{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}";

    #[test]
    fn a_qwen_like_template_has_no_bos_and_no_system_of_its_own() {
        let template = Template::new(QWEN_LIKE, "<bos>", "<|im_end|>");
        let frame = template.frame(None).unwrap();
        assert_eq!(frame.head(), "<|im_start|>user\n");
        assert_eq!(frame.tail, "<|im_end|>\n<|im_start|>assistant\n");
        let frame = template.frame(Some("Be brief.")).unwrap();
        assert_eq!(frame.head(), "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n");
        assert!(!frame.system_in_user);
    }

    #[test]
    fn a_llama_like_template_begins_with_one_bos() {
        let frame = Template::new(LLAMA_LIKE, "<s>", "</s>").frame(Some(" Be brief. ")).unwrap();
        assert!(frame.head().starts_with("<s><|start|>system<|end|>20"), "{frame:?}");
        assert!(frame.head().ends_with(" Be brief.<|eot|><|start|>user<|end|>"), "{frame:?}");
        assert_eq!(frame.head().matches("<s>").count(), 1);
        assert_eq!(frame.tail, "<|eot|><|start|>assistant<|end|>");
    }

    #[test]
    fn a_mistral_like_template_takes_the_system_text_in_the_user_message() {
        let template = Template::new(MISTRAL_LIKE, "<s>", "</s>");
        let frame = template.frame(Some("Be brief.")).unwrap();
        assert_eq!(frame.head(), "<s>[INST] Be brief.\n\n");
        assert_eq!(frame.tail, " [/INST]");
        assert!(frame.system_in_user);
        assert!(!template.frame(None).unwrap().system_in_user);
    }

    #[test]
    fn earlier_turns_stand_between_the_documents_and_the_query() {
        use Speaker::{Assistant, User};
        for (source, between, tail) in [
            (MISTRAL_LIKE, [" [/INST]", "</s>[INST] "], " [/INST]"),
            (
                "{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}<|end|>{% endfor %}<|assistant|>",
                ["<|end|><|assistant|>", "<|end|><|user|>"],
                "<|end|><|assistant|>",
            ),
        ] {
            let template = Template::new(source, "<s>", "</s>");
            for system in [None, Some("Be brief.")] {
                let alone = template.frame(system).unwrap();
                let frame = template.frame_of(system, &[User, Assistant]).unwrap();
                assert_eq!((frame.head(), frame.system_in_user), (alone.head(), alone.system_in_user), "{source}");
                assert_eq!((frame.between.as_slice(), frame.tail.as_str()), (&between.map(String::from)[..], tail));
                assert_eq!(alone.between, Vec::<String>::new());
            }
        }
        let error = Template::new(MISTRAL_LIKE, "<s>", "</s>").frame_of(None, &[User]).unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
        let error = Template::new(QWEN_LIKE, "", "").frame_of(None, &[User, Assistant]).unwrap_err();
        assert!(error.to_string().contains("once and unchanged"), "a template that drops what the model said: {error}");
    }

    #[test]
    fn a_system_text_that_the_template_drops_is_not_found_in_the_templates_own_words() {
        let drops = "{% for message in messages %}{% if message.role == 'user' %}{{ '<|im_start|>user\n' + message.content \
            + '<|im_end|>\n' }}{% endif %}{% endfor %}";
        for system in ["user", "start", "\n", "@@TRIBUTARY-DOCUMENTS@@"] {
            let frame = Template::new(drops, "", "").frame(Some(system)).unwrap();
            assert!(frame.system_in_user, "{system:?}: {frame:?}");
            assert_eq!(frame.head(), format!("<|im_start|>user\n{system}\n\n"));
            assert_eq!(frame.tail, "<|im_end|>\n");
        }
        let twice = "{{ messages[0].content }}{{ messages[0].content }}{{ messages[-1].content }}";
        assert!(Template::new(twice, "", "").frame(Some("Be brief.")).is_err(), "a system text that is said twice");
    }

    #[test]
    fn broken_templates_are_refused() {
        let cases = [
            ("{{ messages[0].content", "chat template"),
            ("{{ raise_exception('no users here') }}", "no users here"),
            ("{{ strftime_now('%d %!') }}{{ messages[0].content }}", "the date `%d %!`"),
            ("no message at all", "once and unchanged"),
            ("{{ messages[0].content }} {{ messages[0].content }}", "once and unchanged"),
            ("{{ messages[0].content | lower }}", "once and unchanged"),
        ];
        for (source, wanted) in cases {
            let error = Template::new(source, "", "").frame(None).unwrap_err().to_string();
            assert!(error.contains(wanted) && !error.contains('\n'), "{source}: {error}");
        }
    }

    #[test]
    fn a_folder_may_hold_its_template_in_three_ways_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let head = || {
            let template = Template::from_folder(folder.path())?;
            template.map(|template| template.frame(None).map(|frame| frame.head())).transpose()
        };
        assert_eq!(head().unwrap(), None);
        let config = folder.path().join("tokenizer_config.json");
        std::fs::write(&config, r#"{"bos_token": "<s>"}"#).unwrap();
        assert_eq!(head().unwrap(), None);
        let text = r#"{"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}a{{ messages[0].content }}"}"#;
        std::fs::write(&config, text).unwrap();
        assert_eq!(head().unwrap().as_deref(), Some("<s>a"));
        let text = r#"{"chat_template": [{"name": "tools", "template": "x"},
            {"name": "default", "template": "b{{ messages[0].content }}"}]}"#;
        std::fs::write(&config, text).unwrap();
        assert_eq!(head().unwrap().as_deref(), Some("b"));
        std::fs::write(folder.path().join("chat_template.jinja"), "c{{ messages[0].content }}").unwrap();
        assert_eq!(head().unwrap().as_deref(), Some("c"));
        std::fs::write(&config, "{").unwrap();
        assert!(matches!(head(), Err(Error::Json { .. })));
    }
}
