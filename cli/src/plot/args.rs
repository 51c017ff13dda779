use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;
use crate::length::parse_micros;
use crate::plot::bins::Bins;
use crate::plot::file::PictureFile;

#[derive(Args, Debug, Default)]
#[group(skip)]
pub(crate) struct PlotArgs {
    /// Draw the calls offered, admitted and denied over time, and the balance, to this file: *.svg or *.png
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Length of a bar, such as 10s [default: a round length that gives about 100 bars]
    #[arg(long, help_heading = HEADING, value_name = "LENGTH")]
    bin: Option<String>,
}

const HEADING: &str = "The picture";

impl PlotArgs {
    /// The file to draw to, if one is given.
    pub(crate) fn file(&self) -> Result<Option<PictureFile>, CliError> {
        self.plot.as_deref().map(PictureFile::new).transpose()
    }

    /// The bars from the first time to the last. `finest` is the resolution of the times.
    pub(crate) fn bins(&self, first: i64, last: i64, finest: i64) -> Result<Bins, CliError> {
        let width = match &self.bin {
            Some(text) => {
                let width = parse_micros(text).map_err(|error| CliError::usage(format!("--bin: {error}")))?;
                if width == 0 {
                    return Err(CliError::usage("--bin must be longer than 0s"));
                }
                Some(width)
            }
            None => None,
        };
        Bins::over(first, last, width, finest)
    }
}
