"""The field's data sets: data modules that read them from any known layout. Imports files, splits and the catalog."""
