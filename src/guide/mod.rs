//! The guide: how to use it, what it promises, and what it costs. All its examples are compiled.
//!
//! - To begin with: [where a call runs](transactions), and the [kinds of limits](kinds)
//! - What it does to the database: [migrations and privileges](migrations), [upgrading], [personal data](personal_data)
//! - When it gets serious: [when things fail](failures), [many callers](many_callers), [shards],
//!   [performance]
//! - Where it runs: [behind a pooler](poolers), [YugabyteDB](yugabytedb)
//! - Around requests: [web services](web); before them: [waiting]
//! - Before it goes out: [testing]
//! - Besides calls from Rust: [the queue](queue), [from SQL](sql), [the tool](tool)
//! - What it does at the moment: [observability](crate::observability)
//! - What else there is: [alternatives]

/// The chapters link to each other as files, for those who read them there; here the links of `links.md` come first.
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
    alternatives failures kinds many_callers migrations performance personal_data poolers queue shards sql testing tool
    transactions upgrading waiting web yugabytedb
}
