//! Writes pictures to files: SVG or PNG, by the file extension.

use std::fs;
use std::path::{Path, PathBuf};

use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::drawing::IntoDrawingArea;

use crate::error::CliError;
use crate::plot::canvas::FAMILY;
use crate::plot::canvas::{Canvas, FINENESS};
use crate::plot::picture::Picture;
use crate::progress::Progress;

#[derive(Debug)]
pub(crate) struct PictureFile {
    path: PathBuf,
    format: Format,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Svg,
    Png,
}

impl PictureFile {
    pub(crate) fn new(path: &Path) -> Result<Self, CliError> {
        let ends = |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
        let name = path.display();
        let format = match () {
            () if ends("svg") => Format::Svg,
            () if ends("png") => Format::Png,
            () => return Err(CliError::usage(format!("--plot {name}: the file name must end in .svg or .png"))),
        };
        // Report this before the work is done.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(CliError::usage(format!("--plot {name}: there is no folder {}", folder.display())));
        }
        if path.is_dir() {
            return Err(CliError::usage(format!("--plot {name}: this is a folder; name a file")));
        }
        Ok(Self { path: path.to_owned(), format })
    }

    pub(crate) fn draw(&self, picture: &Picture) -> Result<(), CliError> {
        let _progress = Progress::of("drawing the picture");
        register_font_family()?;
        let bytes = match self.format {
            Format::Svg => svg(picture)?.into_bytes(),
            Format::Png => png(picture)?,
        };
        fs::write(&self.path, bytes)
            .map_err(|error| CliError::failed(format!("cannot write {}: {error}", self.path.display())))
    }
}

fn svg(picture: &Picture) -> Result<String, CliError> {
    let (width, height) = picture.size();
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (width * FINENESS, height * FINENESS)).into_drawing_area();
        picture.draw(&Canvas::svg(&root)).map_err(CliError::failed)?;
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
        picture.draw(&Canvas::bitmap(&root)).map_err(CliError::failed)?;
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
