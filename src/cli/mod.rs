//! The tool.
