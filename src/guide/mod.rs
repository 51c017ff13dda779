#![doc = include_str!("links.md")]
#![doc = include_str!("index.md")]

/// The pages link to each other as files, for readers of the repository. In the documentation, the links of `links.md` come first
/// and win.
macro_rules! chapters {
    ($($name:ident)+) => {
        $(
            #[doc = include_str!("links.md")]
            #[doc = include_str!(concat!(stringify!($name), ".md"))]
            pub mod $name {}
        )+
    };
}

chapters! {
    addresses alerts alternatives beyond_one_machine calendar_windows concurrency drivers failures gates glossary headroom kinds llm_gateways many_callers migrations outgoing
    performance personal_data poolers queue review scheduled_jobs shards sql testing thresholds tool transactions ui upgrading waiting web yugabytedb
}
