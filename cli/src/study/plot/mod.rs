//! Draws what limits do over time, a panel for each limit on one time axis, to a file: SVG or PNG, by its extension.

mod axes;
mod panel;
mod picture;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::drawing::IntoDrawingArea;

use crate::study::plot::picture::{FAMILY, FINENESS};
use crate::text::parse_micros;
use crate::{CliError, Progress, Result};

pub(crate) use axes::{Bins, Clock, SECOND, finer};
pub(crate) use panel::{Bar, Panel};
pub(crate) use picture::Picture;

impl Picture {
    /// Draws the picture to a file. [`PlotArgs::file`] has checked its name.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let _progress = Progress::of("drawing the picture");
        // The font of PNG files is built into the tool, so no font has to be installed. SVG files contain texts as text.
        plotters::style::register_font(FAMILY, plotters::style::FontStyle::Normal, notosans::REGULAR_TTF)
            .map_err(|_| CliError::failed("cannot read the built-in font for pictures"))?;
        let bytes = if has_ending(path, "svg") { svg(self)? } else { png(self)? };
        fs::write(path, bytes).map_err(|error| CliError::failed(format!("cannot write {}: {error}", path.display())))
    }
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending))
}

fn svg(picture: &Picture) -> Result<Vec<u8>> {
    let (width, height) = picture.size();
    let mut text = String::new();
    let backend = SVGBackend::with_string(&mut text, (width, height));
    picture.draw(&backend.into_drawing_area(), false).map_err(CliError::failed)?;
    // The drawing uses a finer grid than the pixels of the displayed size.
    let fine = format!("width=\"{width}\" height=\"{height}\"");
    let displayed = format!("width=\"{}\" height=\"{}\"", width / FINENESS, height / FINENESS);
    Ok(text.replacen(&fine, &displayed, 1).into_bytes())
}

fn png(picture: &Picture) -> Result<Vec<u8>> {
    let (width, height) = picture.size();
    let mut pixels = vec![0xff; width as usize * height as usize * 3];
    let backend = BitMapBackend::with_buffer(&mut pixels, (width, height));
    picture.draw(&backend.into_drawing_area(), true).map_err(CliError::failed)?;
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // 72 dpi times the fineness, so that the PNG is as large as the SVG.
    let per_metre = 2835 * FINENESS;
    encoder.set_pixel_dims(Some(png::PixelDimensions { xppu: per_metre, yppu: per_metre, unit: png::Unit::Meter }));
    let mut writer = encoder.write_header().map_err(CliError::failed)?;
    writer.write_image_data(&pixels).map_err(CliError::failed)?;
    writer.finish().map_err(CliError::failed)?;
    Ok(bytes)
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "The picture")]
#[group(skip)]
pub(crate) struct PlotArgs {
    /// Draw the calls offered, admitted and denied over time, and the balance, to this file: *.svg or *.png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Length of a bar, such as 10s [default: a round length that gives at most 150 bars]
    #[arg(long, value_name = "LENGTH", value_parser = bar)]
    pub(crate) bin: Option<i64>,
}

impl PlotArgs {
    /// The file to draw to, if one is given. Checks it before the work is done.
    pub(crate) fn file(&self) -> Result<Option<&Path>> {
        let Some(path) = self.plot.as_deref() else { return Ok(None) };
        let is_picture = has_ending(path, "svg") || has_ending(path, "png");
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for (is_wrong, why) in [
            (!is_picture, "the file name must end in .svg or .png"),
            (!folder.is_dir(), &format!("there is no folder {}", folder.display())),
            (path.is_dir(), "this is a folder; name a file"),
        ] {
            CliError::refuse_if(is_wrong, format_args!("--plot {}: {why}", path.display()))?;
        }
        Ok(Some(path))
    }
}

fn bar(text: &str) -> Result<i64, String> {
    Some(parse_micros(text)?).filter(|micros| *micros > 0).ok_or_else(|| "it must be longer than 0s".to_owned())
}
