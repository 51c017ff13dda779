use crate::sql::Schema;

/// A function of the limiter, as SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The name and the argument types, such as `rate_limit_reset(text, text)`. It never changes: a function with different
    /// arguments gets a new name.
    pub signature: &'static str,
    /// The SHA-256 of the definition, in hexadecimal. It is the same in every schema and on every version of PostgreSQL.
    pub sha256: &'static str,
    /// The SQL that creates or replaces the function in the requested schema.
    pub sql: String,
}

macro_rules! sources {
    ($($name:literal)*) => {
        &[$(include_str!(concat!("../../migrations/functions/", $name, ".sql"))),*]
    };
}

/// A test checks that this list equals the contents of the folder.
const ALL: &[&str] = sources![
    "rate_limit"
    "rate_limit_acquire"
    "rate_limit_adopt"
    "rate_limit_again"
    "rate_limit_all"
    "rate_limit_amounts"
    "rate_limit_ask_slots"
    "rate_limit_ask_to_start"
    "rate_limit_asked"
    "rate_limit_asked_slots"
    "rate_limit_block"
    "rate_limit_blocked"
    "rate_limit_bucket_rows"
    "rate_limit_calendar_ahead"
    "rate_limit_calendar_invalid"
    "rate_limit_calendar_kind"
    "rate_limit_calendar_kind_of"
    "rate_limit_calendar_nth"
    "rate_limit_calendar_start"
    "rate_limit_calendar_window_idle_at"
    "rate_limit_calendar_window_value"
    "rate_limit_calendar_window_wait"
    "rate_limit_charge_all"
    "rate_limit_check"
    "rate_limit_check_all"
    "rate_limit_claim"
    "rate_limit_claimed"
    "rate_limit_claimed_jobs"
    "rate_limit_clock"
    "rate_limit_concurrency_guard"
    "rate_limit_concurrency_item"
    "rate_limit_correct"
    "rate_limit_correct_started"
    "rate_limit_counts_after"
    "rate_limit_credit_all"
    "rate_limit_credited"
    "rate_limit_dead_jobs_prune"
    "rate_limit_decide"
    "rate_limit_decide_each"
    "rate_limit_decide_leases"
    "rate_limit_decide_once"
    "rate_limit_decide_one"
    "rate_limit_decide_rows"
    "rate_limit_decide_started"
    "rate_limit_decide_sums"
    "rate_limit_drain"
    "rate_limit_draw"
    "rate_limit_enforce"
    "rate_limit_enqueue"
    "rate_limit_enqueue_jobs"
    "rate_limit_enqueue_slots"
    "rate_limit_find"
    "rate_limit_fits"
    "rate_limit_fixed_window_idle_at"
    "rate_limit_fixed_window_value"
    "rate_limit_fixed_window_wait"
    "rate_limit_forget"
    "rate_limit_forget_jobs"
    "rate_limit_gather"
    "rate_limit_grid"
    "rate_limit_guard"
    "rate_limit_held"
    "rate_limit_idle_after"
    "rate_limit_in_line"
    "rate_limit_invalid"
    "rate_limit_is_distributed"
    "rate_limit_item"
    "rate_limit_job_again"
    "rate_limit_job_cancel"
    "rate_limit_job_done"
    "rate_limit_job_extend"
    "rate_limit_job_requeue"
    "rate_limit_job_settle"
    "rate_limit_jobs_discard"
    "rate_limit_jobs_lapsed"
    "rate_limit_jobs_prune"
    "rate_limit_lag"
    "rate_limit_late_after"
    "rate_limit_leases_at"
    "rate_limit_leases_with"
    "rate_limit_left"
    "rate_limit_length"
    "rate_limit_level"
    "rate_limit_lock_due"
    "rate_limit_lock_slots"
    "rate_limit_names"
    "rate_limit_pass_slots_on"
    "rate_limit_pay_ahead"
    "rate_limit_peek_wait"
    "rate_limit_phase"
    "rate_limit_plan_claim"
    "rate_limit_prune"
    "rate_limit_prune_answers"
    "rate_limit_queue_gauges"
    "rate_limit_release"
    "rate_limit_renew"
    "rate_limit_repay_jobs"
    "rate_limit_reset"
    "rate_limit_reset_name"
    "rate_limit_retake"
    "rate_limit_ring"
    "rate_limit_rows"
    "rate_limit_several"
    "rate_limit_single"
    "rate_limit_sliding_window_adopt"
    "rate_limit_sliding_window_counts"
    "rate_limit_sliding_window_credit"
    "rate_limit_sliding_window_earlier"
    "rate_limit_sliding_window_idle_after"
    "rate_limit_sliding_window_idle_at"
    "rate_limit_sliding_window_left"
    "rate_limit_sliding_window_left_at"
    "rate_limit_sliding_window_passed"
    "rate_limit_sliding_window_value"
    "rate_limit_sliding_window_wait"
    "rate_limit_slots_freed"
    "rate_limit_start_jobs"
    "rate_limit_stop_groups"
    "rate_limit_take"
    "rate_limit_take_ample"
    "rate_limit_take_few"
    "rate_limit_take_from"
    "rate_limit_take_one"
    "rate_limit_take_slots"
    "rate_limit_token_bucket_full_at"
    "rate_limit_token_bucket_idle_at"
    "rate_limit_token_bucket_left"
    "rate_limit_token_bucket_value"
    "rate_limit_token_bucket_wait"
    "rate_limit_ts_after"
    "rate_limit_two_counters_before"
    "rate_limit_two_counters_now"
    "rate_limit_unask_slots"
    "rate_limit_unblock"
    "rate_limit_unpay"
    "rate_limit_unpay_cancelled"
    "rate_limit_validate"
    "rate_limit_validate_element"
    "rate_limit_validate_item"
    "rate_limit_value_after"
    "rate_limit_wait"
    "rate_limit_wake_groups"
    "rate_limit_window"
    "rate_limit_window_start"
    "rate_limit_write"
    "rate_limit_write_jobs"
];

/// Returns the functions of this release for this schema. Create or replace them after the tables. With
/// `check_function_bodies = off`, their order does not matter.
///
/// ```
/// for function in pg_limiter::migrate::functions(&pg_limiter::Schema::default()) {
///     println!("{} {}", function.sha256, function.signature);
/// }
/// ```
pub fn functions(schema: &Schema) -> Vec<Function> {
    ALL.iter().map(|text| function(text, schema)).collect()
}

/// The first two lines of a file are the signature and the hash.
fn function(text: &'static str, schema: &Schema) -> Function {
    let mut lines = text.lines();
    let signature = lines.next().and_then(|line| line.strip_prefix("-- ")).unwrap_or_default();
    let sha256 = lines.next().and_then(|line| line.strip_prefix("-- SHA-256: ")).unwrap_or_default();
    Function { signature, sha256, sql: schema.render(text) }
}
