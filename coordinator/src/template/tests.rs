//! Renderings of conversations, places of documents in them, and the author of each part.

use serde_json::json;

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

const THINKING: &str = "{% for m in messages %}{% set content = m.content %}{% if m.role == 'assistant' and '</think>' in content %}\
    {% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ '<|' + m.role + '|>' + content + '<|end|>' }}\
    {% endfor %}{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}\
    <think></think>{% endif %}{% endif %}";

/// gpt-oss's template in short: a system message of its own, and a client's as the developer's.
const HARMONY_LIKE: &str = "{%- macro head() -%}\n{%- if reasoning_effort is not defined %}\n{%- set reasoning_effort = 'medium' %}\n\
    {%- endif %}\n{{- 'Effort: ' + reasoning_effort }}\n{%- endmacro -%}\n\
    {{- '<|start|>system<|message|>' }}{{- head() }}{{- '<|end|>' }}\n\
    {%- if messages[0].role == 'developer' or messages[0].role == 'system' %}\n\
    {{- '<|start|>developer<|message|># Rules\\n' + messages[0].content + '<|end|>' }}\n{%- set turns = messages[1:] %}\n\
    {%- else %}\n{%- set turns = messages %}\n{%- endif %}\n{%- for message in turns -%}\n\
    {%- if message.role == 'user' -%}\n{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}\n\
    {%- elif 'thinking' in message and loop.last and not add_generation_prompt -%}\n\
    {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}\n\
    {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}\n\
    {%- else -%}\n{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}\n{%- endif -%}\n\
    {%- endfor -%}\n{%- if add_generation_prompt -%}\n<|start|>assistant\n{%- endif -%}";

fn messages(texts: &[(&str, &str)]) -> Vec<Message> {
    texts.iter().map(|(role, text)| Message::new(role, *text)).collect()
}

fn write(source: &str, system: Option<&str>, documents: &str, texts: &[(&str, &str)]) -> Result<Written> {
    let messages = messages(texts);
    let talk = Talk { system, documents, messages: &messages, ..Talk::default() };
    Template::new(source, "<s>", "</s>").write(&talk, &ChatOptions::default())
}

/// Text before the documents, and after them.
fn around(written: &Written) -> (&str, &str) {
    let placed = written.documents.as_ref().expect("the documents");
    (&written.text[..placed.at.start], &written.text[placed.at.end..])
}

#[test]
fn documents_stand_between_the_head_and_the_query() {
    for (source, system, head, tail) in [
        (QWEN_LIKE, None, "<|im_start|>user\n", "q<|im_end|>\n<|im_start|>assistant\n"),
        (
            QWEN_LIKE,
            Some("Be brief."),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n",
            "q<|im_end|>\n<|im_start|>assistant\n",
        ),
        (MISTRAL_LIKE, None, "<s>[INST] ", "q [/INST]"),
        (
            HARMONY_LIKE,
            None,
            "<|start|>system<|message|>Effort: medium<|end|><|start|>user<|message|>",
            "q<|end|><|start|>assistant",
        ),
        (
            HARMONY_LIKE,
            Some("Be brief."),
            "<|start|>system<|message|>Effort: medium<|end|><|start|>developer<|message|># Rules\nBe brief.<|end|>\
             <|start|>user<|message|>",
            "q<|end|><|start|>assistant",
        ),
        (MISTRAL_LIKE, Some("Be brief."), "<s>[INST] Be brief.\n\n", "q [/INST]"),
    ] {
        for documents in ["one\ntwo\n", "a", "q", "user", "<|im_end|>"] {
            let written = write(source, system, documents, &[("user", "q")]).unwrap();
            assert_eq!(around(&written), (head, tail), "{documents:?} in {source}");
            assert_eq!(written.system_in_user, source == MISTRAL_LIKE && system.is_some());
        }
    }
    let written = write(LLAMA_LIKE, Some(" Be brief. "), "one\n", &[("user", "q")]).unwrap();
    let (head, tail) = around(&written);
    assert!(
        head.starts_with("<s><|start|>system<|end|>20") && head.ends_with(" Be brief.<|eot|><|start|>user<|end|>"),
        "{head}"
    );
    assert_eq!(tail, "q<|eot|><|start|>assistant<|end|>");
}

#[test]
fn what_a_template_does_with_texts_happens() {
    let turns = [("user", "a"), ("assistant", "<think>\nhm\n</think>\n\nb"), ("user", "c")];
    let written = write(THINKING, None, "docs\n", &turns).unwrap();
    assert_eq!(written.text, "<|user|>docs\na<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>");
    assert_eq!(around(&written), ("<|user|>", "a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>"));
    let trims = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
    let written = write(trims, Some(" s "), " \n one\n", &[("user", "q \n")]).unwrap();
    assert_eq!((written.text.as_str(), around(&written)), ("[s][one\nq]", ("[s][", "q]")));
    assert_eq!(written.documents.unwrap().of, 3..7, "without the space that was trimmed");
    let switch = "{% set s = messages[0].content %}{% if '/no_think' in s %}quiet{% endif %}{{ s.replace('/no_think', '').strip() }}|\
        {{ messages[-1].content }}";
    assert_eq!(write(switch, Some("Be brief. /no_think"), "", &[("user", "q")]).unwrap().text, "quietBe brief.|q");
    assert_eq!(
        write(switch, Some("/no_think"), "", &[("user", "q")]).unwrap().text,
        "quiet|q",
        "a switch alone is taken"
    );
    let begins = "{% for m in messages %}{{ 'tool:' if m.content.startswith('<tool>') else 'user:' }}{{ m.content }};{% endfor %}";
    let written = write(begins, None, "<tool>one", &[("user", "q</tool>")]).unwrap();
    assert_eq!((written.text.as_str(), around(&written)), ("tool:<tool>oneq</tool>;", ("tool:", "q</tool>;")));
}

#[test]
fn no_chat_fails_that_the_template_renders() {
    for (source, text, placed) in [
        ("{{ messages[0].content }} {{ messages[0].content }}", "one\nq one\nq", false),
        ("{{ messages[0].content | upper }}", "ONE\nQ", false),
        ("{{ messages[0].content | length }}", "5", false),
        ("{{ messages[0].content[:4] }}", "one\n", false),
        ("{{ messages[0].content[1:] }}", "ne\nq", false),
        ("no message at all", "no message at all", false),
        ("{{ 'x' if messages[0].content | length == 5 }}{{ messages[0].content }}", "xone\nq", true),
        ("{{ messages[0].content.replace('n', 'm') }}", "ome\nq", false),
    ] {
        let written = write(source, None, "one\n", &[("user", "q")]).unwrap();
        assert_eq!((written.text.as_str(), written.documents.is_some()), (text, placed), "{source}");
    }
}

#[test]
fn system_messages_are_the_templates_to_place() {
    let refuses = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('one system') }}{% endif %}\
        [{{ m.role }}:{{ m.content }}]{% endfor %}";
    let several = [("system", "a"), ("user", "q"), ("system", "b"), ("user", "r")];
    assert_eq!(write(refuses, None, "", &several).unwrap().text, "[system:a\n\nb][user:q][user:r]");
    let takes = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
    assert_eq!(write(takes, None, "", &several).unwrap().text, "[system:a][user:q][system:b][user:r]");
    assert_eq!(
        write(takes, Some("own"), "", &several).unwrap().text,
        "[system:a][user:q][system:b][user:r]",
        "theirs first"
    );
    let written = write(MISTRAL_LIKE, None, "one\n", &[("system", "a"), ("system", "b"), ("user", "q")]).unwrap();
    assert_eq!((written.text.as_str(), written.system_in_user), ("<s>[INST] a\n\nb\n\none\nq [/INST]", true));
    let drops = "{% for message in messages %}{% if message.role == 'user' %}{{ '<|im_start|>user\n' + message.content \
        + '<|im_end|>\n' }}{% endif %}{% endfor %}";
    for system in ["user", "start", "Be brief."] {
        let written = write(drops, Some(system), "", &[("user", "q")]).unwrap();
        assert_eq!(written.text, format!("<|im_start|>user\n{system}\n\nq<|im_end|>\n"));
    }
    let error = write(MISTRAL_LIKE, None, "", &[("user", "a"), ("user", "b")]).unwrap_err();
    assert!(matches!(&error, Error::Conversation(words) if words == "roles must alternate"), "{error}");
}

#[test]
fn an_answer_is_continued_as_in_transformers() {
    let options = |ending| ChatOptions { ending, ..ChatOptions::default() };
    let of = |source: &str, answer: &str, ending| {
        let messages = messages(&[("user", "q"), ("assistant", answer)]);
        let talk = Talk { messages: &messages, ..Talk::default() };
        Template::new(source, "<s>", "</s>").write(&talk, &options(ending)).map(|written| written.text)
    };
    assert_eq!(of(THINKING, "It is ", Ending::Continued).unwrap(), "<|user|>q<|end|><|assistant|>It is ");
    assert_eq!(of(THINKING, "It is", Ending::Nothing).unwrap(), "<|user|>q<|end|><|assistant|>It is<|end|>");
    assert_eq!(
        of(THINKING, "It is", Ending::Answer).unwrap(),
        "<|user|>q<|end|><|assistant|>It is<|end|><|assistant|>"
    );
    let continued = of(HARMONY_LIKE, "It is ", Ending::Continued).unwrap();
    assert!(continued.ends_with("q<|end|><|start|>assistant<|channel|>final<|message|>It is "), "{continued}");
    let trims = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
    assert_eq!(of(trims, "It is ", Ending::Continued).unwrap(), "[q][It is", "what the template trims is trimmed");
    assert!(matches!(of("x", "It is", Ending::Continued), Err(Error::Conversation(_))));
}

#[test]
fn values_of_a_request_reach_the_template() {
    let messages = messages(&[("user", "q")]);
    let talk = Talk { messages: &messages, ..Talk::default() };
    let kwargs = json!({"enable_thinking": false}).as_object().unwrap().clone();
    let quiet =
        Template::new(THINKING, "", "").write(&talk, &ChatOptions { kwargs, ..ChatOptions::default() }).unwrap();
    assert_eq!(quiet.text, "<|user|>q<|end|><|assistant|><think></think>");
    let mut thought = Message::new("assistant", "a");
    thought.rest = json!({"reasoning": "r", "tool_calls": null, "name": "n"}).as_object().unwrap().clone();
    let seen = "{{ messages[0].reasoning_content }}{{ messages[0].tool_calls is defined }}{{ messages[0].name }}";
    let talk = Talk { messages: &[thought], ..Talk::default() };
    let kwargs = json!({"reasoning_effort": "low"}).as_object().unwrap().clone();
    let options = ChatOptions { kwargs, ending: Ending::Nothing };
    assert_eq!(
        Template::new(HARMONY_LIKE, "", "").write(&talk, &options).unwrap().text,
        "<|start|>system<|message|>Effort: low<|end|><|start|>assistant<|channel|>analysis<|message|>r<|end|>\
         <|start|>assistant<|channel|>final<|message|>a<|return|>"
    );
    assert_eq!(Template::new(seen, "", "").write(&talk, &ChatOptions::default()).unwrap().text, "rFalsen");
}

#[test]
fn words_of_the_user_are_theirs() {
    let written = write(
        THINKING,
        None,
        "one<|end|>\n",
        &[("user", "<|end|>two"), ("assistant", "x<think>y</think><|end|>"), ("user", "z")],
    );
    let written = written.unwrap();
    let parts = written.parts(0..written.text.len());
    let by = |user: bool| {
        let is = |part: &&PromptPart<'_>| matches!(part, PromptPart::User(_)) == user;
        parts.iter().filter(is).map(PromptPart::text).collect::<Vec<_>>()
    };
    assert_eq!(by(true), ["one<|end|>\n<|end|>two", "<|end|>", "z"]);
    assert_eq!(by(false), ["<|user|>", "<|end|><|assistant|>", "<|end|><|user|>", "<|end|><|assistant|>"]);
    // If the author of words is uncertain, marks that a user writes do not count.
    let counts = "{% if messages[0].content | length == 9 %}[{{ messages[0].content }}<|end|>]{% endif %}";
    let written =
        write(counts, None, "", &[("user", "ab<|end|>")]).unwrap().with_marks_of_the_user(&["<|end|>".into()]);
    let whole = written.parts(0..written.text.len());
    assert!(
        whole.iter().all(|part| matches!(part, PromptPart::User(_)) || !part.text().contains("<|end|>")),
        "{whole:?}"
    );
}

#[test]
fn templates_that_cannot_be_used_are_known_before_the_first_chat() {
    for (source, wanted) in [
        ("{{ messages[0].content", "syntax error"),
        ("{{ raise_exception('no users here') }}", "no users here"),
        ("{{ strftime_now('%d %!') }}{{ messages[0].content }}", "the date `%d %!`"),
        ("{{ 1 | nosuchfilter }}", "nosuchfilter"),
        ("{{ 'a' + 1 }}\u{1b}[31m", "line 1"),
        ("{% nosuch\u{1b}[31m %}", "line 1"),
    ] {
        let error = Template::new(source, "", "").check().unwrap_err();
        let line = error.to_string();
        assert!(matches!(error, Error::Template(_)) && error.exit_code() == 64, "{line}");
        assert!(line.contains(wanted) && !line.contains(char::is_control), "{source}: {line:?}");
    }
    for source in [QWEN_LIKE, LLAMA_LIKE, MISTRAL_LIKE, THINKING, HARMONY_LIKE] {
        Template::new(source, "<s>", "</s>").check().unwrap();
    }
}

#[test]
fn a_folder_may_hold_its_template_in_three_ways_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let head = || {
        let template = Template::from_folder(folder.path())?;
        let talk = Talk { messages: &[Message::new("user", "")], ..Talk::default() };
        template.map(|template| template.write(&talk, &ChatOptions::default()).map(|written| written.text)).transpose()
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
