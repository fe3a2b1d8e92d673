//! Text of Slurm's configuration files. tarn writes its lines into another's file as a block, so that it can be found
//! again and taken out, after any changes around it.

/// The first line of our block; in a file that is ours alone, the first line without the comment's sign.
pub const BEGIN: &str =
    "tarn: written by `tarn slurm install`, taken out by `tarn slurm install --remove`";
/// The last line of our block.
const END: &str = "# tarn: end";

/// Lines of a file: before our block, the block with its first and last line, behind it.
type ConfSections<'t> = (&'t str, &'t str, &'t str);

/// Why a file cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "tarn's lines in it have a beginning and no end (`{END}`), or are there twice: mend that by hand"
)]
pub struct Torn;

fn parts(text: &str) -> Result<Option<ConfSections<'_>>, Torn> {
    let begin = format!("# {BEGIN}");
    let mut at = 0;
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    for line in text.split_inclusive('\n') {
        if line.trim_end() == begin {
            begins.push(at);
        }
        at += line.len();
        if line.trim_end() == END {
            ends.push(at);
        }
    }
    match (&begins[..], &ends[..]) {
        ([], []) => Ok(None),
        ([begin], [end]) if begin < end => {
            Ok(Some((&text[..*begin], &text[*begin..*end], &text[*end..])))
        }
        _ => Err(Torn),
    }
}

/// The text with these lines in our block: where it was, else at the end.
///
/// # Errors
/// There is half a block in it.
pub fn with(text: &str, lines: &str) -> Result<String, Torn> {
    let newline = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let (before, behind) = match parts(text)? {
        Some((before, _, behind)) => (before.to_owned(), behind),
        None => (format!("{text}{newline}"), ""),
    };
    let last = if lines.is_empty() || lines.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    Ok(format!("{before}# {BEGIN}\n{lines}{last}{END}\n{behind}"))
}

/// The text without our block: as it was before there was one, but for a newline at its end.
///
/// # Errors
/// There is half a block in it.
pub fn without(text: &str) -> Result<String, Torn> {
    Ok(match parts(text)? {
        Some((before, _, behind)) => format!("{before}{behind}"),
        None => text.to_owned(),
    })
}

/// The value of a key of slurm.conf: the last one counts, upper and lower case are one.
#[must_use]
pub fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let output = statements(text).filter_map(|line| line.split_once('='));
    let output = output.filter(|(name, _)| name.trim().eq_ignore_ascii_case(key));
    output.map(|(_, value)| value.trim()).last()
}

/// The files that a text includes, as it names them.
pub fn includes(text: &str) -> impl Iterator<Item = &str> {
    statements(text).filter_map(|line| {
        let (word, file) = line.split_once(char::is_whitespace)?;
        word.eq_ignore_ascii_case("include").then(|| file.trim())
    })
}

/// Its lines without comments.
fn statements(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_found_as_slurm_finds_them() {
        let text = "# BurstBufferType=none\nburstbuffertype = burst_buffer/lua # ours\nInclude more.conf\nJobSubmitPlugins=a\nJobSubmitPlugins=lua,b\n";
        assert_eq!(value(text, "BurstBufferType"), Some("burst_buffer/lua"));
        assert_eq!(value(text, "JobSubmitPlugins"), Some("lua,b"));
        assert_eq!(value(text, "GresTypes"), None);
        assert_eq!(includes(text).collect::<Vec<_>>(), ["more.conf"]);
    }

    #[test]
    fn half_a_block_is_not_touched() {
        let whole = with("A=1\n", "B=2").unwrap();
        let torn = [
            whole.replace(END, ""),
            whole.replace(&format!("# {BEGIN}\n"), ""),
            format!("{whole}{whole}"),
        ];
        for text in torn {
            assert_eq!(with(&text, "B=2"), Err(Torn), "{text}");
            assert_eq!(without(&text), Err(Torn), "{text}");
        }
    }

    proptest! {
        /// A block that is written can be taken out again, and is where it was when it is written again.
        #[test]
        fn a_block_comes_and_goes(before in "([A-Za-z=#. ]{0,12}\n){0,4}", behind in "([A-Za-z=#. ]{0,12}\n){0,4}", lines in "([a-z=]{0,8}\n){0,3}") {
            let once = with(&before, &lines).unwrap();
            prop_assert_eq!(without(&once).unwrap(), before.clone());
            let changed = format!("{once}{behind}");
            let again = with(&changed, "new=1\n").unwrap();
            prop_assert_eq!(without(&again).unwrap(), format!("{before}{behind}"));
            prop_assert!(again.ends_with(&behind) && again.starts_with(&before));
            prop_assert_eq!(value(&again, "new"), Some("1"));
        }
    }
}
