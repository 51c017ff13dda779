use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;
use crate::length::parse_micros;
use crate::plot::bins::Bins;
use crate::plot::file::PictureFile;

#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct PlotArgs {
    /// Draw what was offered, admitted and denied over time, and the balance, into this file: *.svg or *.png
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// How long a bar is, like 10s [default: so that there are about 100]
    #[arg(long, help_heading = HEADING, value_name = "LENGTH")]
    bin: Option<String>,
}

const HEADING: &str = "The picture";

impl PlotArgs {
    /// Where to draw to, if to draw.
    pub(crate) fn file(&self) -> Result<Option<PictureFile>, CliError> {
        self.plot.as_deref().map(PictureFile::new).transpose()
    }

    /// The bars from the first moment to the last; `finest` is the resolution of the moments.
    pub(crate) fn bins(&self, first: i64, last: i64, finest: i64) -> Result<Bins, CliError> {
        let width = match &self.bin {
            Some(text) => {
                let width = parse_micros(text).map_err(|error| CliError::usage(format!("--bin: {error}")))?;
                if width == 0 {
                    return Err(CliError::usage("--bin: a bar is longer than 0s"));
                }
                Some(width)
            }
            None => None,
        };
        Bins::over(first, last, width, finest)
    }
}
