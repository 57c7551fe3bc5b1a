//! Entry points of the fuzz targets.
