//! A user's settings for a request, and their meaning for a given model.

use tributary_methods::{
    EVICT, EXCHANGE, EvictChoice, Excerpt, FIRST, IMPORTANCE, KEEP, KEEP_ORDER, KEEP_PER_CHUNK, KeepPerChunk,
    MethodOption, MethodSpec, ModelFacts, ORDER_FOR, Options, PACKETS, RATIO, REORDER, exchange_named,
};
use tributary_protocol::{
    Around, AuxiliaryReading, CHUNKS_ALONE, Chunk, Command, Exchange, Importance, Method, OrderFor, PREFIX_ALONE,
    Packets, Picture, PlannedMethod, REFERENCE, Requirement, Returns, Sampling,
};

use super::compression;
use super::eviction::EvictionWish;
use super::keeping::Conversation;
use crate::Result;
use crate::error::setting;

/// Maximum number of ranks in a group: far more than any machine runs, few enough that no size of a
/// plan overflows.
const MAX_WORLD: usize = 4096;

/// A model for what follows from none: more layers than any option's default needs.
const ANY_MODEL: ModelFacts = ModelFacts::new(1 << 16, 1);

/// Settings of one request. Those that a method does not have are ignored.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSettings {
    /// The method.
    pub method: &'static Method,
    /// Share of the context to recompute; the method's own default where absent.
    pub ratio: Option<f64>,
    /// The method's own options; those that the planner reads for every method are fields here.
    pub options: Options,
    /// Importance by which chunks are reordered before selection, if they are.
    pub reorder: Option<Importance>,
    /// Purpose of a new order of chunks.
    pub order_for: OrderFor,
    /// Whether the trained rows of an adapter stand around every chunk.
    pub packets: Packets,
    /// Whether the first chunk may be selected.
    pub include_first_chunk: bool,
    /// Exchange during recompute; chosen from bytes and memory where absent.
    pub exchange: Option<Exchange>,
    /// Number of ranks.
    pub world: usize,
    /// The rank that computes the query's rows and draws the tokens; the default one where absent.
    pub owner: Option<usize>,
    /// Compression of every chunk before it is cached; everything is kept where absent.
    pub keep_per_chunk: Option<KeepPerChunk>,
    /// Eviction of the prompt before decoding.
    pub eviction: EvictionWish,
    /// Maximum number of tokens to generate, the first included.
    pub max_tokens: usize,
    /// Parameters of sampling; the seed is also that of random selection.
    pub sampling: Sampling,
    /// Time in milliseconds that a rank may compute without progress, and that ranks may wait for
    /// each other, before the group is declared dead.
    pub timeout_ms: u64,
    /// Numbers that the outcome carries besides the tokens.
    pub returns: Returns,
    /// Share of the chunks that may come from the chunk cache: of the cached ones, spread evenly
    /// over the request; the first ones if a prefix is reused.
    pub reuse: f64,
    /// Whether a reused prefix may reach into the query, as in later turns of a conversation.
    pub reuses_query: bool,
    /// Whether freshly computed chunks or pieces of a prompt join the chunk cache.
    pub keep_chunks: bool,
    /// Scope of the chunks that are looked up and kept; shared by all where absent.
    pub cache_scope: Option<u64>,
    /// Whether chunks in ranks' memories are ignored, so that cached chunks come from the store.
    pub from_store: bool,
    /// What it does with the sequences of earlier requests of its conversation.
    pub conversation: Conversation,
    /// Whether its sequence stays after the first token, for another program that decodes.
    pub hands_over: bool,
}

/// An option that settings keep in fields of their own.
struct Kept {
    option: &'static MethodOption,
    /// Writes its value, in canonical form, to settings.
    write: fn(&mut RequestSettings, &str),
    /// Reads its value from settings, in a form that the option accepts; `None` if it is the
    /// default.
    read: fn(&RequestSettings) -> Option<String>,
}

static KEPT: [Kept; 10] = [
    Kept { option: &RATIO, write: |s, v| s.ratio = v.parse().ok(), read: |s| s.ratio.map(|ratio| ratio.to_string()) },
    Kept {
        option: &REORDER,
        write: |s, _| _ = s.reorder.get_or_insert(Importance::Mass),
        read: |s| (s.reorder == Some(Importance::Mass)).then(String::new),
    },
    Kept {
        option: &IMPORTANCE,
        write: |s, v| s.reorder = v.parse().ok(),
        read: |s| s.reorder.filter(|of| *of != Importance::Mass).map(|of| of.name().to_owned()),
    },
    Kept {
        option: &ORDER_FOR,
        write: |s, v| s.order_for = v.parse().unwrap_or_default(),
        read: |s| (s.order_for != OrderFor::All).then(|| s.order_for.name().to_owned()),
    },
    Kept {
        option: &PACKETS,
        write: |s, _| s.packets = Packets::On,
        read: |s| (s.packets == Packets::On).then(String::new),
    },
    Kept {
        option: &KEEP_PER_CHUNK,
        write: |s, v| s.keep_per_chunk = v.parse().ok(),
        read: |s| s.keep_per_chunk.map(|kept| kept.to_string()),
    },
    Kept {
        option: &FIRST,
        write: |s, _| s.include_first_chunk = true,
        read: |s| s.include_first_chunk.then(String::new),
    },
    Kept {
        option: &EXCHANGE,
        write: |s, v| s.exchange = exchange_named(v).unwrap_or_default(),
        read: |s| s.exchange.map(|exchange| exchange.name().to_owned()),
    },
    Kept {
        option: &EVICT,
        write: |s, v| {
            let choice = v.parse::<EvictChoice>().ok();
            s.eviction.method = choice.map(|choice| choice.method);
            s.eviction.window = choice.and_then(|choice| choice.window).or(s.eviction.window);
        },
        read: |s| Some(EvictChoice { method: s.eviction.method?, window: s.eviction.window }.to_string()),
    },
    Kept {
        option: &KEEP,
        write: |s, v| s.eviction.keep = v.parse().ok(),
        read: |s| s.eviction.keep.map(|keep| keep.to_string()),
    },
];

impl Default for RequestSettings {
    fn default() -> Self {
        Self {
            method: default_method(),
            ratio: None,
            options: Options::default(),
            reorder: None,
            order_for: OrderFor::All,
            packets: Packets::Off,
            include_first_chunk: false,
            exchange: None,
            world: 1,
            owner: None,
            keep_per_chunk: None,
            eviction: EvictionWish::default(),
            max_tokens: 32,
            sampling: Sampling::default(),
            timeout_ms: 60_000,
            returns: Returns::default(),
            reuse: 1.0,
            reuses_query: false,
            keep_chunks: false,
            cache_scope: None,
            from_store: false,
            conversation: Conversation::Off,
            hands_over: false,
        }
    }
}

impl RequestSettings {
    /// These with a method; options of another one go.
    fn of_method(mut self, method: &'static Method) -> Self {
        if self.method != method {
            (self.method, self.options) = (method, Options::default());
        }
        self
    }

    /// These with a method and its options. Options of the same method that the spec does not name
    /// stay.
    ///
    /// Every other choice stays, whether the method takes it or not.
    #[must_use]
    pub fn set(self, spec: &MethodSpec) -> Self {
        let mut this = self.of_method(spec.method);
        for (option, value) in spec.options.iter() {
            match KEPT.iter().find(|kept| kept.option == option) {
                Some(kept) => (kept.write)(&mut this, value),
                None if option.is_default(value) => this.options.remove(option),
                None => this.options.set(option, value).expect("a value in its canonical form"),
            }
        }
        this
    }

    /// These with a method and its options over theirs. Other choices stay if the method takes
    /// them.
    ///
    /// Unless the spec names them, some are dropped: a reorder for a method that does not probe the
    /// query, an order for the selection alone for one that moves nothing, and a compression of
    /// chunks for one that cannot have it.
    #[must_use]
    pub fn apply(self, spec: &MethodSpec) -> Self {
        let mut this = self.of_method(spec.method);
        if !this.method.takes(&REORDER) {
            this.reorder = None;
        }
        let order_for = std::mem::replace(&mut this.order_for, OrderFor::All);
        let settings = this.without_idle_compression().set(spec);
        match spec.has(&ORDER_FOR) {
            true => settings,
            false => Self { order_for, ..settings }.without_idle_order(),
        }
    }

    /// The method with its options, as users write them.
    pub fn spec(&self) -> MethodSpec {
        let mut spec = MethodSpec { method: self.method, options: self.options.clone() };
        for Kept { option, read, .. } in &KEPT {
            let Some(value) = read(self).filter(|_| self.method.takes(option)) else { continue };
            spec.options.set(option, &value).expect("a value that the option takes");
        }
        spec.in_order()
    }

    /// The method with the data that a plan carries, for a model; and its own options with their
    /// defaults.
    ///
    /// # Errors
    /// Returns [`Error::Setting`](crate::Error::Setting) if the model does not allow an option.
    pub fn method(&self, model: ModelFacts) -> Result<(PlannedMethod, Options)> {
        Ok(PlannedMethod::new(self.method, self.options.clone(), model)?)
    }

    /// What an auxiliary model reads for the method, if one does. That follows from no main model.
    ///
    /// # Errors
    /// As [`method`](Self::method).
    pub fn auxiliary_reading(&self) -> Result<Option<AuxiliaryReading>> {
        if !self.method.needs(Requirement::AuxiliaryModel) {
            return Ok(None);
        }
        Ok(self.method(ANY_MODEL)?.0.auxiliary_reading())
    }

    /// What the method takes whole, if it answers from an excerpt. That follows from no model.
    ///
    /// # Errors
    /// As [`method`](Self::method).
    pub fn excerpt(&self) -> Result<Option<Excerpt>> {
        if !self.method.reads_sentences() {
            return Ok(None);
        }
        Ok(self.method(ANY_MODEL)?.0.excerpt())
    }

    /// These without an order for the selection alone if chunks always stay in the request's order:
    /// for settings whose method has replaced another one.
    #[must_use]
    pub fn without_idle_order(self) -> Self {
        let order_for = if self.moves_nothing() { OrderFor::All } else { self.order_for };
        Self { order_for, ..self }
    }

    /// These without a compression of chunks if the method cannot have one: for settings whose
    /// method has replaced another one.
    #[must_use]
    pub fn without_idle_compression(self) -> Self {
        let keep_per_chunk = self.keep_per_chunk.filter(|_| self.method.takes(&KEEP_PER_CHUNK));
        Self { keep_per_chunk, ..self }
    }

    /// These for a prompt without a context to reuse or select from: it is computed whole, which is
    /// exact, after the part of it that is cached if requests leave some.
    #[must_use]
    pub fn without_context(self) -> Self {
        let method = match self.keep_chunks {
            _ if self.method == REFERENCE || self.method.reuses_prefix() => self.method,
            true => PREFIX_ALONE,
            false => REFERENCE,
        };
        let this = Self { packets: Packets::Off, reorder: None, ..self.of_method(method) };
        this.without_idle_order().without_idle_compression()
    }

    /// A chunk of these tokens that no rank has yet, between these rows.
    pub(crate) fn chunk(&self, (ids, pictures): (Vec<u32>, Vec<Picture>), around: Option<Around>) -> Chunk {
        let compress = self.keep_per_chunk.and_then(|kept| compression::of_chunk(kept, ids.len()));
        Chunk { ids, pictures, rank: 0, warm: false, around, compress }
    }

    /// Whether the trained rows of an adapter stand around every chunk, even if another method that
    /// takes them replaces this one. A method that requires them always has them, and one that does
    /// not take them has none unless they are requested.
    #[must_use]
    pub fn chunk_packets(&self) -> Packets {
        match self.packets {
            _ if self.method.needs(Requirement::Adapter) => Packets::On,
            Packets::IfAny if !self.method.takes(&PACKETS) => Packets::Off,
            packets => packets,
        }
    }

    /// Whether chunks always stay in the request's order.
    fn moves_nothing(&self) -> bool {
        match self.reorder {
            Some(_) => false,
            None => !self.method.takes(&KEEP_ORDER) || self.options.has(&KEEP_ORDER),
        }
    }

    /// The same for chunks ahead of use: chunks are computed and kept on their ranks, and nothing
    /// else is done.
    pub(crate) fn for_chunks(&self) -> Self {
        Self {
            method: CHUNKS_ALONE,
            options: Options::default(),
            packets: self.chunk_packets(),
            ratio: None,
            reorder: None,
            order_for: OrderFor::All,
            exchange: Some(Exchange::PassQ),
            owner: None,
            eviction: EvictionWish::default(),
            max_tokens: 1,
            returns: Returns::default(),
            reuse: 1.0,
            keep_chunks: true,
            conversation: Conversation::Off,
            hands_over: false,
            ..self.clone()
        }
    }

    /// The same for a request that another program decodes.
    #[must_use]
    pub fn for_hand_over(&self) -> Self {
        Self { max_tokens: 1, conversation: Conversation::Off, hands_over: true, ..self.clone() }
    }

    /// The share of the context to recompute: 0 for methods that recompute nothing.
    ///
    /// # Errors
    /// Returns [`Error::Setting`](crate::Error::Setting) if it is not from 0 to 1.
    pub fn ratio(&self) -> Result<f64> {
        let usual = self.method.ratio;
        let ratio = self.ratio.or(usual).unwrap_or(0.0);
        if !(0.0..=1.0).contains(&ratio) {
            return Err(setting("--ratio", ratio, "must be from 0 to 1"));
        }
        Ok(if usual.is_some() { ratio } else { 0.0 })
    }

    /// Checks everything that needs neither model nor request.
    ///
    /// # Errors
    /// Returns [`Error::Setting`](crate::Error::Setting) for invalid values.
    pub fn check(&self) -> Result<()> {
        self.ratio()?;
        if self.world == 0 || self.world > MAX_WORLD {
            return Err(setting("--world-size", self.world, format!("must be at least 1 and at most {MAX_WORLD}")));
        }
        if self.max_tokens == 0 {
            return Err(setting("--max-tokens", 0, "must be at least 1: the first token is always drawn"));
        }
        if let Some(owner) = self.owner.filter(|&owner| owner >= self.world) {
            return Err(setting("owner", owner, format!("must be one of {} ranks", self.world)));
        }
        if self.reorder.is_some() && !self.method.takes(&REORDER) {
            let able = Method::names_taking(&REORDER).join(", ");
            let wanted = format!("only with a method that asks the query: {able}");
            return Err(setting("--reorder", format!("with {}", self.method.name), wanted));
        }
        if self.order_for == OrderFor::Selection && self.moves_nothing() {
            let able = Method::names_taking(&ORDER_FOR).join(", ");
            let wanted = format!("needs reorder, or trace without keep-order, of {able}");
            return Err(setting("--method", format!("{}:order-for=selection", self.method.name), wanted));
        }
        let takes_packets = self.method.takes(&PACKETS) || self.method.needs(Requirement::Adapter);
        if self.packets == Packets::On && !takes_packets {
            let able = Method::names_taking(&PACKETS).join(", ");
            return Err(setting(
                "--method",
                format!("{}:packets", self.method.name),
                format!("packets are for {able}"),
            ));
        }
        self.eviction.check()?;
        if let Some(kept) = self.keep_per_chunk {
            compression::check(&kept, self.method, self.eviction.method.is_some())?;
        }
        if !(0.0..=1.0).contains(&self.reuse) {
            return Err(setting("hit rate", self.reuse, "must be from 0 to 1"));
        }
        let Sampling { temperature, top_p, .. } = self.sampling;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(setting("--temperature", temperature, "must be 0 or more"));
        }
        if !(0.0..=1.0).contains(&top_p) {
            return Err(setting("--top-p", top_p, "must be from 0 to 1"));
        }
        Ok(())
    }
}

/// The default method of one request.
fn default_method() -> &'static Method {
    Method::defaults_of(Command::Prefill).into_iter().next().expect("one request has a method by default")
}

/// Maximum number of rows to recompute.
pub(crate) fn budget(ratio: f64, context_tokens: usize) -> usize {
    if ratio <= 0.0 {
        return 0;
    }
    // Without the small number, 0.15 of 20 would be 2.
    let share = (ratio * context_tokens as f64 + 1e-9).floor();
    (share as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_methods::REQUEST;

    /// Chunks are computed ahead of use independently of later requests' settings.
    #[test]
    fn settings_of_any_method_serve_chunks_alone() {
        let method = Method::find("trace").expect("a method");
        let moved = RequestSettings { method, order_for: OrderFor::Selection, ..RequestSettings::default() };
        assert!(moved.check().is_ok() && moved.for_chunks().check().is_ok());
        assert_eq!(moved.clone().without_idle_order(), moved, "trace moves documents");
        let stays = moved.set(&"trace:order-for=selection:keep-order".parse().expect("a spec"));
        assert!(stays.check().is_err());
        assert_eq!(stays.without_idle_order().order_for, OrderFor::All);
    }

    fn spec(text: &str) -> MethodSpec {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn applied(text: &str, settings: &RequestSettings) -> RequestSettings {
        settings.clone().apply(&spec(text))
    }

    fn reordering() -> RequestSettings {
        RequestSettings { reorder: Some(Importance::Mass), ..RequestSettings::default() }
    }

    /// Every option that a request keeps in fields is written and read back; all others stay with
    /// the method.
    #[test]
    fn every_option_reaches_the_settings_and_comes_back() {
        assert_eq!(KEPT.each_ref().map(|kept| kept.option.key), REQUEST.map(|option| option.key));
        for text in [
            "infoflow:ratio=0.3:importance=selected:order-for=selection:score=mass:layers=1..3:first:exchange=pass-q",
            "relay:packets:evict=[snapkv:window=4]:keep=50%",
            "none:keep-per-chunk=[50%:tova]",
            "trace:alpha=0.25:sharpest=0.5:keep-order",
            "samkv:variant=small",
        ] {
            let settings = RequestSettings::default().set(&spec(text));
            assert_eq!(settings.spec().to_string(), text);
            assert_eq!(RequestSettings::default().set(&settings.spec()), settings);
        }
        assert_eq!(reordering().spec().to_string(), "infoflow:reorder");
    }

    #[test]
    fn a_spec_stands_in_for_the_settings() {
        let settings = applied("infoflow:first:importance=selected:layers=1..4:ratio=0.05", &reordering());
        assert_eq!((settings.ratio, settings.options.to_string().as_str()), (Some(0.05), ":layers=1..4"));
        assert_eq!((settings.reorder, settings.include_first_chunk), (Some(Importance::Selected), true));
        let settings = applied("samkv:theta=0.5", &settings);
        assert_eq!((settings.options.to_string().as_str(), settings.reorder), (":theta=0.5", None));
        let served = RequestSettings::default().set(&spec("relay:layout=hl-tp"));
        let layout = |text| applied(text, &served).options.to_string();
        assert_eq!(layout("relay"), ":layout=hl-tp", "a service's own option of the same method");
        assert_eq!([layout("relay:layout=global"), layout("prophetkv")], ["", ""]);
        assert_eq!(applied("epic", &reordering()).reorder, None, "a method that does not ask the query");
        assert_eq!(applied("relay", &reordering()).reorder, Some(Importance::Mass));
        let kept = RequestSettings { keep_per_chunk: "50%".parse().ok(), ..RequestSettings::default() };
        assert_eq!(applied("relay", &kept).keep_per_chunk, kept.keep_per_chunk);
        assert_eq!(applied("a3", &kept).keep_per_chunk, kept.keep_per_chunk);
        assert_eq!(applied("cacheblend", &kept).keep_per_chunk, None);
    }

    #[test]
    fn an_order_for_the_selection_stays_where_the_method_moves_chunks() {
        let (all, selection) = (OrderFor::All, OrderFor::Selection);
        let settings = RequestSettings { order_for: selection, ..reordering() };
        for (text, expected) in [
            ("relay", selection),
            ("relay:order-for=all", all),
            ("trace", selection),
            ("trace:keep-order", all),
            ("epic", all),
            ("full", all),
        ] {
            assert_eq!(applied(text, &settings).order_for, expected, "{text}");
        }
        assert_eq!(applied("relay:order-for=selection", &RequestSettings::default()).order_for, selection);
    }
}
