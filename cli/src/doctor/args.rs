use std::time::Duration;

use clap::Args;

use crate::doctor::tserver::Address;
use crate::length::parse_length;

pub(crate) const DOCTOR_EXIT_CODES: &str = "\
Exit codes:
  0  only `ok` and notes
  1  a warning or a problem
  2  an invalid argument
  3  the database is unavailable, or something else failed

Every transaction of `doctor` is READ ONLY. Use the URL of the application: the findings are valid for its role and its path to
the server.";

const OLD_TRANSACTION: &str = "5m";

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Address of the web page of a YugabyteDB tserver, which shows its flags [default: the database's host, port 9000]
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) tserver: Option<Address>,
    /// Age from which an open transaction is reported, such as 5m; capped at 30s if old row versions pile up
    #[arg(long, value_name = "LENGTH", default_value = OLD_TRANSACTION, value_parser = parse_length)]
    pub(super) old_transaction: Duration,
    /// Print a JSON array of objects, one per check
    #[arg(long)]
    pub(super) json: bool,
}

impl Default for DoctorArgs {
    /// The arguments that no option changes.
    fn default() -> Self {
        let old_transaction = parse_length(OLD_TRANSACTION).unwrap_or(Duration::from_secs(300));
        Self { tserver: None, old_transaction, json: false }
    }
}
