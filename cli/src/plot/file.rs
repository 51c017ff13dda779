//! Writes pictures to files: SVG or PNG, by the file extension.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::drawing::IntoDrawingArea;

use crate::error::CliError;
use crate::output::Progress;
use crate::plot::bins::Bins;
use crate::plot::canvas::{Canvas, FAMILY, FINENESS};
use crate::plot::picture::Picture;
use crate::text::parse_micros;

#[derive(Debug)]
pub(crate) struct PictureFile {
    path: PathBuf,
    /// Otherwise PNG.
    is_svg: bool,
}

impl PictureFile {
    pub(crate) fn new(path: &Path) -> Result<Self, CliError> {
        let ends = |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
        let name = path.display();
        let is_svg = ends("svg");
        if !is_svg && !ends("png") {
            return Err(CliError::usage(format!("--plot {name}: the file name must end in .svg or .png")));
        }
        // Report this before the work is done.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(CliError::usage(format!("--plot {name}: there is no folder {}", folder.display())));
        }
        if path.is_dir() {
            return Err(CliError::usage(format!("--plot {name}: this is a folder; name a file")));
        }
        Ok(Self { path: path.to_owned(), is_svg })
    }

    pub(crate) fn draw(&self, picture: &Picture) -> Result<(), CliError> {
        let _progress = Progress::of("drawing the picture");
        register_font_family()?;
        let bytes = if self.is_svg { svg(picture)?.into_bytes() } else { png(picture)? };
        fs::write(&self.path, bytes)
            .map_err(|error| CliError::failed(format!("cannot write {}: {error}", self.path.display())))
    }
}

fn svg(picture: &Picture) -> Result<String, CliError> {
    let (width, height) = picture.size();
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (width * FINENESS, height * FINENESS)).into_drawing_area();
        picture.draw(&Canvas { area: &root, rise: 0.25, in_segments: false }).map_err(CliError::failed)?;
        root.present().map_err(CliError::failed)?;
    }
    // The drawing uses a finer grid than the pixels of the displayed size.
    let fine = format!("width=\"{}\" height=\"{}\"", width * FINENESS, height * FINENESS);
    Ok(text.replacen(&fine, &format!("width=\"{width}\" height=\"{height}\""), 1))
}

fn png(picture: &Picture) -> Result<Vec<u8>, CliError> {
    let (width, height) = picture.size();
    let (width, height) = (width * FINENESS, height * FINENESS);
    let mut pixels = vec![0xff; width as usize * height as usize * 3];
    {
        let root = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        picture.draw(&Canvas { area: &root, rise: 0.38, in_segments: true }).map_err(CliError::failed)?;
        root.present().map_err(CliError::failed)?;
    }
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

/// The font of PNG files is built into the tool, so no font has to be installed. SVG files contain texts as text.
fn register_font_family() -> Result<(), CliError> {
    plotters::style::register_font(FAMILY, plotters::style::FontStyle::Normal, notosans::REGULAR_TTF)
        .map_err(|_| CliError::failed("cannot read the built-in font for pictures"))
}

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
