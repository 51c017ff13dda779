use std::time::Duration;

use clap::Args;

use crate::doctor::tserver::Address;
use crate::length::parse_length;

pub(crate) const DOCTOR_EXIT_CODES: &str = "\
Exit codes:
  0  nothing but `ok` and notes
  1  there is a warning or a problem
  2  a mistake in the arguments
  3  the database is unavailable, or anything else failed

Every transaction of it is READ ONLY. Connect as the application does: what is found is true for that role and that way.";

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Where a tserver of YugabyteDB shows its flags [default: the database's host, port 9000]
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) tserver: Option<Address>,
    /// For how long a transaction may be open; where versions of rows pile up, no longer than 30s
    #[arg(long, value_name = "LENGTH", default_value = "5m", value_parser = parse_length)]
    pub(super) old_transaction: Duration,
    /// Print JSON: an array of objects
    #[arg(long)]
    pub(super) json: bool,
}
