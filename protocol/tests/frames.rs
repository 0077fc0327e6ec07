//! Frames: written data reads back the same, and everything else is an error.

use std::sync::Arc;

use proptest::prelude::*;
use tributary_methods::{MethodSpec, ModelFacts};
use tributary_protocol::{
    Auxiliary, AuxiliaryCost, AuxiliaryPrompt, Chunk, Collective, Continues, DeviceMemory, DraftModel, DrawnToken,
    Error, Event, Evict, Evicted, Eviction, Exchange, FromStore, HEADER_BYTES, Importance, KeptRows, KeySpace,
    Logprobs, LookAhead, MESSAGE_LIMIT_BYTES, METHODS, Order, OrderFor, Outcome, PROTOCOL_VERSION, Phase, Plan,
    PlannedMethod, RankReport, Refusal, Returns, Sampling, ScoredQuery, ScoredToken, Sharpest, Slices, Span,
    StepReport, StoreError, StoreOperation, StoreReport, TextHints, Tier, checksum, decode, decode_frame, encode,
    encode_frame,
};

fn method(spec: &str) -> PlannedMethod {
    let spec: MethodSpec = spec.parse().expect("a spec");
    spec.planned(ModelFacts::new(40, 8)).expect("a method of this model")
}

fn methods() -> impl Strategy<Value = PlannedMethod> {
    let samples: Vec<&str> = METHODS.into_iter().flat_map(|method| method.samples.iter().copied()).collect();
    prop::sample::select(samples).prop_map(method)
}

fn auxiliary() -> Auxiliary {
    let prompts = vec![AuxiliaryPrompt { ids: vec![1, 2, 3], query: 1, stands_for: vec![1..3, 3..3] }];
    let cost =
        AuxiliaryCost { memory_bytes: 99, row_flops: 5, pair_flops: 6, row_elementwise: 7, matrix_bytes: 8, layers: 3 };
    Auxiliary { model: "small".into(), prompts, written: 8, cost }
}

fn draft_model() -> DraftModel {
    DraftModel { model: "smaller".into(), cost: auxiliary().cost }
}

fn ids(most: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..most)
}

prop_compose! {
    fn plans()(
        request in any::<u64>(),
        prefix in ids(4),
        chunks in prop::collection::vec((ids(40), 0usize..8), 0..12),
        query in ids(20),
        method in methods(),
        exchange in prop::sample::select(
            vec![Exchange::Replicate, Exchange::PassQ, Exchange::Selected]),
        numbers in any::<(u16, u16, u64, u8)>(),
        flags in any::<(bool, bool, bool)>(),
        order_for in prop::sample::select(vec![OrderFor::All, OrderFor::Selection]),
        reorder in prop::sample::select(
            vec![None, Some(Importance::Mass), Some(Importance::Selected)]),
        sampling in (0f32..2.0, 0f32..1.0, any::<u64>()),
        eos in ids(3),
    ) -> Plan {
        let (temperature, top_p, seed) = sampling;
        Plan {
            request, prefix, lead: vec![2; usize::from(flags.0)], query, method, exchange, owner: numbers.3.into(), reorder, order_for, eos,
            chunks: chunks.into_iter().map(|(ids, rank)| Chunk { ids, pictures: Vec::new(), rank, warm: rank % 2 == 1 , around: None, compress: None }).collect(),
            budget: numbers.0.into(),
            order: if flags.1 { vec![1, 0] } else { Vec::new() },
            reused_rows: numbers.1.into(),
            continues: flags.1.then_some(Continues { request: numbers.2, rows: 3, first_rows: 2 }),
            keep_sequence: flags.2,
            windows_from: numbers.1.into(),
            hands_over: flags.2,
            scope: flags.2.then_some(numbers.2),
            keep_chunks: !flags.0,
            from_store: flags.1,
            include_first_chunk: flags.0,
            max_tokens: numbers.1.into(),
            sampling: Sampling { temperature, top_p, top_k: numbers.1.into(), seed, ..Sampling::default() },
            timeout_ms: numbers.2,
            slices: Slices::default(),
            returns: Returns { logits: flags.1, scores: flags.2, logprobs: flags.0.then_some(numbers.1.into()), prompt_logprobs: flags.2.then_some(numbers.1.into()) },
            auxiliary: if flags.1 { vec![auxiliary()] } else { Vec::new() },
            text: if flags.0 { text_hints() } else { TextHints::default() },
            draft_model: flags.1.then(draft_model),
            look_ahead: flags.2.then_some(LookAhead { adapter: 4, rows: 32 }),
            evict: flags.0.then(evict),
        }
    }
}

fn text_hints() -> TextHints {
    TextHints { sentence_ends: vec![4, 70_000], shared_words: vec![(3, 0.5)], named: vec![2] }
}

fn evict() -> Evict {
    let method = Eviction::PyramidKv;
    Evict { method, keep: 128, window: 32, pooled: 7, sinks: 4, beta: 20, pseudo: 32, seed: 9, gather: true }
}

fn is_refused(result: Result<Plan, Error>) -> bool {
    matches!(result, Err(Error::Message(_)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_plan_comes_back(plan in plans()) {
        let frame = encode_frame(&plan).unwrap();
        prop_assert_eq!(decode_frame::<Plan>(&frame).unwrap(), plan);
    }

    #[test]
    fn a_cut_frame_is_refused(plan in plans(), cut in any::<prop::sample::Index>()) {
        let frame = encode_frame(&plan).unwrap();
        prop_assert!(is_refused(decode_frame(&frame[..cut.index(frame.len())])));
    }

    #[test]
    fn a_flipped_bit_is_refused(plan in plans(), bit in any::<prop::sample::Index>()) {
        let mut frame = encode_frame(&plan).unwrap();
        let bit = bit.index(8 * frame.len());
        frame[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(is_refused(decode_frame(&frame)));
    }

    #[test]
    fn bytes_after_the_frame_are_refused(plan in plans(), more in 1usize..20) {
        let mut frame = encode_frame(&plan).unwrap();
        frame.resize(frame.len() + more, 0);
        prop_assert!(is_refused(decode_frame(&frame)));
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(is_refused(decode_frame(&bytes)));
    }

    #[test]
    fn a_message_without_a_frame_comes_back_whole_or_not_at_all(plan in plans(), cut in any::<prop::sample::Index>()) {
        let message = encode(&plan).unwrap();
        prop_assert_eq!(&encode_frame(&plan).unwrap()[HEADER_BYTES..], &message[..]);
        prop_assert!(is_refused(decode(&message[..cut.index(message.len())])));
        prop_assert_eq!(decode::<Plan>(&message).unwrap(), plan);
    }

    #[test]
    fn random_payloads_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        // With a right header and checksum: any decoded value must encode to the same bytes.
        if let Ok(plan) = decode_frame::<Plan>(&framed(&bytes)) {
            prop_assert_eq!(&encode_frame(&plan).unwrap()[HEADER_BYTES..], &bytes[..]);
        }
    }
}

/// A frame with a right header around any payload.
fn framed(payload: &[u8]) -> Vec<u8> {
    let mut frame = encode_frame(&()).expect("nothing fits a frame");
    frame[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    let checksum = checksum(&[&frame[..12], payload]);
    frame[12..16].copy_from_slice(&checksum.to_le_bytes());
    frame.extend(payload);
    frame
}

#[test]
fn every_single_bit_is_guarded() {
    let event = Event::FirstToken { request: 7, drawn: DrawnToken { token: 12, margin: 0.5, logprobs: None } };
    let frame = encode_frame(&event).unwrap();
    for bit in 0..8 * frame.len() {
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(decode_frame::<Event>(&damaged), Err(Error::Message(_))), "bit {bit}");
    }
}

#[test]
fn nothing_may_follow_the_message() {
    let event = Event::FirstToken { request: 7, drawn: DrawnToken { token: 12, margin: 0.5, logprobs: None } };
    let mut payload = encode_frame(&event).unwrap().split_off(HEADER_BYTES);
    assert_eq!(decode_frame::<Event>(&framed(&payload)), Ok(event));
    payload.push(0);
    let error = decode_frame::<Event>(&framed(&payload)).unwrap_err().to_string();
    assert!(error.contains("1 bytes left after the message"), "{error}");
}

#[test]
fn a_length_in_the_payload_is_checked_before_allocation() {
    // A list of u32 that claims 2^62 entries and carries none: allocating it would abort the test.
    for claimed in [1u64 << 62, u64::MAX, MESSAGE_LIMIT_BYTES as u64 / 4 + 1] {
        let result = decode_frame::<Vec<u32>>(&framed(&claimed.to_le_bytes()));
        assert!(matches!(result, Err(Error::Message(_))), "{claimed}: {result:?}");
    }
}

#[test]
fn the_limit_holds_on_both_sides() {
    let fits = vec![7u8; MESSAGE_LIMIT_BYTES - 8];
    assert_eq!(decode_frame::<Vec<u8>>(&encode_frame(&fits).unwrap()).unwrap(), fits);
    let too_long = vec![7u8; MESSAGE_LIMIT_BYTES - 7];
    assert!(matches!(encode_frame(&too_long), Err(Error::Message(_))));
    let mut frame = encode_frame(&()).unwrap();
    frame[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = decode_frame::<()>(&frame).unwrap_err().to_string();
    assert!(error.contains(&u32::MAX.to_string()), "{error}");
}

#[test]
fn another_version_says_both_numbers() {
    let mut frame = encode_frame(&()).unwrap();
    frame[4..8].copy_from_slice(&7u32.to_le_bytes());
    let error = decode_frame::<()>(&frame).unwrap_err().to_string();
    let both = format!("version 7, this side speaks {PROTOCOL_VERSION}");
    assert!(error.contains(&both), "{error}");
}

#[test]
fn events_and_orders_come_back() {
    let outcome = Outcome {
        tokens: vec![1, 2],
        margins: vec![0.5, 0.25],
        order: vec![1, 0],
        selected: vec![3],
        measured: vec![4, 5],
        rounds: vec![1, 1],
        sharpest: Sharpest { any: Some(0.375), behind: None },
        candidates: 9,
        logits: Some(vec![f32::MIN, 0.5]),
        scores: None,
        prompt: Some(Box::new(ScoredQuery(vec![ScoredToken {
            token: 7,
            logprob: -0.25,
            rank: 2,
            top: vec![(3, -0.125)],
        }]))),
        kept: Some(Box::new(KeptRows(vec![vec![vec![1, 2], vec![0, 3]]]))),
        kept_of_chunks: Some(Box::new(KeptRows(vec![vec![vec![3]]]))),
    };
    let mut report = RankReport { rank: 1, drew_first_token: true, auxiliary_s: 0.75, ..RankReport::default() };
    report.device_memory = Some(DeviceMemory { used_bytes: 1, high_bytes: 3, reserved_bytes: 4, message_bytes: 5 });
    report.resident_bytes = 1 << 33;
    report.traffic.count(Collective::AllGather, 3, 4);
    let mut step = StepReport { rank: 1, seconds: 0.5, waited_s: 0.25, sequences: 2, ..StepReport::default() };
    step.traffic.count(Collective::AllToAll, 1, 2);
    let logprobs = Logprobs { drawn: -0.5, top: vec![(2, -0.5), (9, -2.0)] };
    let refusal = || Refusal { exit_code: 65, cause: "not a number".into() };
    let events = [
        Event::FirstToken {
            request: 1,
            drawn: DrawnToken { token: 2, margin: 0.25, logprobs: Some(Box::new(logprobs)) },
        },
        Event::Prefilled {
            request: 1,
            outcome: Box::new(outcome),
            reports: vec![RankReport::default(), report.clone()],
        },
        Event::Kept { request: 1, reports: vec![report] },
        Event::Stepped {
            tokens: vec![(1, Ok(DrawnToken { token: 2, margin: 0.0, logprobs: None })), (2, Err(refusal()))],
            reports: vec![step.clone()],
        },
        Event::Halted { request: 1 },
        Event::Released { running: vec![1, 0] },
        Event::Cancelled { request: 3, reports: vec![RankReport { points: 7, ..RankReport::default() }] },
        Event::Refused { request: 3, refusal: refusal(), traffic: vec![step.traffic.clone()] },
        Event::Failed { request: 1, rank: 3, exit_code: 69, cause: "gone".into() },
    ];
    for event in events {
        assert_eq!(decode_frame::<Event>(&encode_frame(&event).unwrap()).unwrap(), event);
    }
    for order in [Order::Tick, Order::Decode(vec![1, 2]), Order::Release(vec![3]), Order::Resume, Order::Stop] {
        assert_eq!(decode_frame::<Order>(&encode_frame(&order).unwrap()).unwrap(), order);
    }
}

fn chunk(ids: &[u32], rank: usize, warm: bool) -> Chunk {
    Chunk { ids: ids.to_vec(), pictures: Vec::new(), rank, warm, around: None, compress: None }
}

/// A plan and a report, as this version of the protocol has them.
fn samples() -> (Order, Event) {
    let plan = Plan {
        request: 7,
        prefix: vec![1],
        lead: vec![1],
        chunks: vec![chunk(&[2, 3], 1, true), Chunk { compress: Some(evict()), ..chunk(&[4], 0, false) }],
        query: vec![5, 6],
        method: method("infoflow:layers=22..26:layout=hl-tp"),
        owner: 1,
        exchange: Exchange::PassQ,
        budget: 9,
        order: vec![1, 0],
        reused_rows: 3,
        continues: Some(Continues { request: 6, rows: 5, first_rows: 4 }),
        keep_sequence: true,
        windows_from: 4,
        hands_over: false,
        scope: Some(13),
        keep_chunks: true,
        from_store: true,
        include_first_chunk: false,
        reorder: Some(Importance::Selected),
        order_for: OrderFor::Selection,
        max_tokens: 32,
        eos: vec![2],
        sampling: Sampling { temperature: 0.5, top_p: 0.75, top_k: 40, seed: 11, ..Sampling::default() },
        timeout_ms: 60_000,
        slices: Slices::default(),
        returns: Returns { logits: true, scores: false, logprobs: Some(5), prompt_logprobs: None },
        auxiliary: vec![auxiliary()],
        text: text_hints(),
        draft_model: Some(draft_model()),
        look_ahead: Some(LookAhead { adapter: 4, rows: 32 }),
        evict: Some(evict()),
    };
    let mut report = RankReport { rank: 1, drew_first_token: true, auxiliary_s: 0.75, ..RankReport::default() };
    report.device_memory = Some(DeviceMemory { used_bytes: 1, high_bytes: 3, reserved_bytes: 4, message_bytes: 5 });
    report.resident_bytes = 1 << 33;
    let (bytes_before, bytes_kept, asking_rows, received_bytes) = (3, 4, 5, 6);
    report.evicted =
        Some(Evicted { rows_before: 1, rows_kept: 2, bytes_before, bytes_kept, asking_rows, received_bytes });
    report.traffic.count(Collective::AllGather, 3, 4);
    report.spans.push(Span { phase: Phase::Probe, start_s: 0.25, seconds: 0.5, waited_s: 0.125 });
    let key = KeySpace::new([1; 32], "f32").chunk(&[1], &[2, 3], &[]);
    report.chunk_cache.stored.push(key);
    report.chunk_cache.from_store = FromStore { loaded: 1, loaded_tokens: 2, loaded_bytes: 3, computed: 4, spoilt: 5 };
    report.chunk_cache.store = Some(StoreReport {
        stored: vec![key],
        gone: vec![key],
        evicted: 6,
        operations: vec![(Tier::Disk, StoreOperation::Read, 7, 0.5)],
        errors: vec![(Tier::Remote, StoreError::Corrupt, 8)],
        used_bytes: 9,
    });
    let outcome = Outcome { tokens: vec![1, 2], logits: Some(vec![0.5]), ..Outcome::default() };
    (Order::Prefill(Arc::new(plan)), Event::Prefilled { request: 1, outcome: Box::new(outcome), reports: vec![report] })
}

/// A change here needs another version: ranks of two builds would misread each other.
#[test]
fn messages_of_this_version_are_the_same_to_the_byte() {
    let (order, event) = samples();
    let header = |frame: &[u8]| frame[..HEADER_BYTES].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    // Magic, version, length, and the checksum of everything.
    let headers = (header(&encode_frame(&order).unwrap()), header(&encode_frame(&event).unwrap()));
    let told = ("545249421b000000fd0200002be1e3cd", "545249421b0000005b020000768a5b20");
    assert_eq!((headers.0.as_str(), headers.1.as_str()), told);
}
