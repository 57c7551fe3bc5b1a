//! The pages of `docs/` that are made from records.

use crate::compare::{Contrast, Verdict};
use crate::figure::Figure;
use crate::numeral::{parameters, plain, rounded, wrapped};
use crate::recorded::{Case, Parameters, Phase, Recorded, RecordedRun};
use crate::statistics::ROUNDS_MIN;
use crate::table::{COLUMNS, circumstances, warnings};

use super::losses::{Loss, Losses};

/// The text: what is lost first, then each run. `peers` are the subjects that the others are
/// measured by; with none, each is held against the first of its run.
#[must_use]
pub fn text(recorded: &Recorded, peers: &[String]) -> String {
    let mut out = Text::default();
    for remark in &recorded.remarks {
        out.paragraph(&escaped(remark));
    }
    out.losses(&Losses::of(recorded, peers), peers);
    for run in &recorded.runs {
        out.run(run, peers);
    }
    out.lines
}

#[derive(Default)]
struct Text {
    lines: String,
}

impl Text {
    fn paragraph(&mut self, text: &str) {
        if !self.lines.is_empty() {
            self.lines.push('\n');
        }
        self.lines.push_str(&wrapped(text, "", COLUMNS));
        self.lines.push('\n');
    }

    fn item(&mut self, text: &str) {
        let lines = wrapped(text, "  ", COLUMNS);
        self.lines.push_str(&lines.replacen("  ", "- ", 1));
        self.lines.push('\n');
    }

    fn table(&mut self, header: &[String], rows: &[Vec<String>]) {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule: Vec<String> = header.iter().map(|_| "---".into()).collect();
        self.lines.push('\n');
        self.lines.push_str(&line(header));
        self.lines.push_str(&line(&rule));
        for row in rows {
            self.lines.push_str(&line(row));
        }
    }

    fn losses(&mut self, losses: &Losses, peers: &[String]) {
        self.paragraph("## What we lose, first");
        if losses.compared == 0 {
            self.paragraph("There was one subject only, so there is nothing to lose against.");
            return;
        }
        let best = if peers.is_empty() { "the best other" } else { "the best other mode" };
        let peers = peers.join(", ");
        for (name, all) in [(peers.as_str(), &losses.behind_peers), (best, &losses.behind_others)] {
            if name.is_empty() {
                continue;
            }
            if all.is_empty() {
                self.paragraph(&format!("Nothing against {}.", escaped(name)));
                continue;
            }
            self.paragraph(&format!(
                "Against {}, figure by figure, the greatest first:",
                escaped(name)
            ));
            let header =
                ["load", "subject", "figure", "median", "better", "of", "worse by", "95 %"];
            let rows: Vec<_> = all.iter().map(loss_row).collect();
            self.table(&header.map(Into::into), &rows);
        }
        self.paragraph(
            "What is listed is significant: the 95 % interval of the ratio leaves out 1. Of \
             figures that do not differ, about one in twenty looks as if it did.",
        );
        if losses.too_few > 0 {
            self.paragraph(&format!(
                "{} of {} comparisons have too few rounds to tell: {ROUNDS_MIN} on each side are \
                 needed.",
                losses.too_few, losses.compared
            ));
        }
    }

    fn run(&mut self, run: &RecordedRun, peers: &[String]) {
        let title = run.title();
        let title = [title.as_str(), run.run.date.as_str()];
        let title: Vec<_> = title.into_iter().filter(|part| !part.is_empty()).collect();
        let title = if title.is_empty() { run.run.id.clone() } else { title.join(", ") };
        self.lines.push_str(&format!("\n## {}\n", escaped(&title)));
        for line in circumstances(&run.run) {
            self.paragraph(&escaped(&line));
        }
        if !run.run.arguments.is_empty() {
            let arguments = plain(&run.run.arguments.join(" ")).replace('`', "'");
            self.paragraph(&format!("Arguments: `{arguments}`."));
        }
        if !run.run.subjects.is_empty() || !run.run.left_out.is_empty() {
            self.lines.push('\n');
        }
        for (name, what) in &run.run.subjects {
            self.item(&format!("{}: {}", escaped(name), escaped(what)));
        }
        for what in &run.run.left_out {
            self.item(&format!("Left out: {}", escaped(what)));
        }
        for phase in &run.phases {
            self.phase(run, phase, peers);
        }
    }

    fn phase(&mut self, run: &RecordedRun, phase: &Phase, peers: &[String]) {
        self.lines.push_str(&format!("\n### {}\n", escaped(&phase.name)));
        let base = base(run, phase, peers);
        let rounds = match phase.rounds() {
            1 => "One round.".to_owned(),
            rounds => format!(
                "Median of {rounds} rounds, in parentheses the spread: (max - min) / median."
            ),
        };
        let fixed = escaped(&parameters(&phase.fixed));
        let fixed = if fixed.is_empty() { fixed } else { format!("{fixed}. ") };
        let ratios = base.map_or_else(String::new, |base| {
            format!(
                " After x: the ratio to {}, bold where it is significantly worse and with `=` \
                 where it is not significant.",
                escaped(base)
            )
        });
        self.paragraph(&format!("{fixed}{rounds}{ratios}"));
        for setting in phase.settings() {
            if !setting.is_empty() {
                self.paragraph(&format!("With {}:", escaped(&parameters(setting))));
            }
            self.figures(phase, setting, base);
        }
        for warning in warnings(phase) {
            self.paragraph(&format!("**{}**", escaped(&warning)));
        }
    }

    /// A row for each figure, a column for each subject.
    fn figures(&mut self, phase: &Phase, setting: &Parameters, base: Option<&str>) {
        let cases: Vec<_> =
            phase.subjects().iter().filter_map(|name| phase.case(name, setting)).collect();
        let base = base.and_then(|name| phase.case(name, setting));
        let header: Vec<String> = std::iter::once("figure".into())
            .chain(cases.iter().map(|case| escaped(&case.subject)))
            .collect();
        let mut rows = Vec::new();
        for figure in Figure::ALL {
            let all_zero =
                cases.iter().all(|case| case.summary(*figure).is_none_or(|one| one.max == 0.0));
            if all_zero {
                continue;
            }
            let title = match figure.unit() {
                "" => figure.title().to_owned(),
                unit => format!("{}, {unit}", figure.title()),
            };
            let cells = cases.iter().map(|case| cell(*figure, case, base));
            rows.push(std::iter::once(title).chain(cells).collect());
        }
        self.table(&header, &rows);
    }
}

/// The subject that the others are measured by: the first peer of the phase, else the first.
fn base<'a>(run: &RecordedRun, phase: &'a Phase, peers: &[String]) -> Option<&'a str> {
    let subjects = phase.subjects();
    if subjects.len() < 2 {
        return None;
    }
    let peer = subjects.iter().find(|subject| peers.iter().any(|peer| peer == *subject));
    let first = run.subjects().first().copied();
    peer.or_else(|| subjects.iter().find(|subject| Some(**subject) == first)).copied()
}

fn cell(figure: Figure, case: &Case, base: Option<&Case>) -> String {
    let Some(summary) = case.summary(figure) else { return "-".into() };
    let spread = summary.relative_spread().filter(|part| *part >= 0.005);
    let spread = spread.map_or_else(String::new, |part| format!(" ({:.0} %)", part * 100.0));
    let median = rounded(summary.median);
    let base = base.filter(|base| base.subject != case.subject);
    let Some(contrast) = base.and_then(|base| Contrast::of(figure, base, case)) else {
        return format!("{median}{spread}");
    };
    let Some(ratio) = contrast.comparison.ratio else {
        let bold = contrast.verdict() == Verdict::Worse;
        return if bold { format!("**{median}**{spread}") } else { format!("{median}{spread}") };
    };
    let ratio = match contrast.verdict() {
        Verdict::Worse => format!("**x {}**", rounded(ratio)),
        Verdict::Better => format!("x {}", rounded(ratio)),
        Verdict::NoDifference | Verdict::TooFewRounds => format!("x {} =", rounded(ratio)),
    };
    format!("{median}{spread} {ratio}")
}

fn loss_row(loss: &Loss) -> Vec<String> {
    vec![
        escaped(&loss.load()),
        escaped(&loss.subject),
        loss.figure(),
        rounded(loss.contrast.other.median),
        rounded(loss.contrast.base.median),
        escaped(&loss.against),
        loss.how_much(),
        loss.contrast.interval_text(),
    ]
}

/// Text from records without what Markdown or HTML would read as markup.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in plain(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '`' => out.push_str("&#96;"),
            '|' | '*' | '[' | ']' | '\\' | '#' | '!' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
