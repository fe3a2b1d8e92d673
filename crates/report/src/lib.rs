//! L3: what happened in a run, from its log: summaries, answers of why, the HTML report
