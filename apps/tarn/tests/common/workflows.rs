//! Workflows of one step, as text.

/// One step `a` that makes `r`; `data` says what becomes of it.
pub(crate) fn makes(name: &str, data: &str, run: &str) -> String {
    format!(
        "name = \"{name}\"\n[data.r]\n{data}\n[[step]]\nname = \"a\"\nrun = \'\'\'{run}\'\'\'\nout = [\"r\"]\n"
    )
}

/// One step that reads `i` from `in`, and makes `o`, which goes to `out`; `more` ends the step.
pub(crate) fn reads(step: &str, run: &str, more: &str) -> String {
    format!(
        "name = \"w\"\n[data.i]\nsource = \"in\"\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"{step}\"\nrun = \'\'\'{run}\'\'\'\nin = [\"i\"]\nout = [\"o\"]\n{more}\n"
    )
}
