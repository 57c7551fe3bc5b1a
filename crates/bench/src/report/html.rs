//! One page that needs nothing else: no scripts, no other files.

use crate::figure::Figure;
use crate::numeral::{count, parameters, rounded};
use crate::recorded::{Phase, Recorded, RecordedRun};
use crate::table::{circumstances, warnings};

use super::ink;
use super::losses::{Loss, Losses};
use super::plot::{Plot, Table, plots};
use super::svg::escaped;

/// Losses beyond this are folded away.
const LOSSES_SHOWN: usize = 15;

/// The page, as text of well-formed XML. `peers` are the subjects that the others are measured
/// by; with none, each is held against the best other one.
#[must_use]
pub fn page(recorded: &Recorded, peers: &[String]) -> String {
    let title = title(recorded);
    let mut body = format!("<h1>{}</h1>\n", escaped(&title));
    for remark in &recorded.remarks {
        body.push_str(&format!("<p class=\"loud\">{}</p>\n", escaped(remark)));
    }
    let subjects = recorded.subjects();
    let single = recorded.runs.len() == 1;
    if let [run] = recorded.runs.as_slice() {
        body.push_str(&head_of_run(run, &subjects));
    }
    body.push_str(&contents(recorded));
    body.push_str(&summary(recorded, peers));
    for (place, run) in recorded.runs.iter().enumerate() {
        if !single {
            body.push_str(&format!("<h2 class=\"run\">{}</h2>\n", escaped(&name_of(run))));
            body.push_str(&head_of_run(run, &subjects));
        }
        for (number, phase) in run.phases.iter().enumerate() {
            body.push_str(&section(run, phase, &subjects, &anchor(place, number)));
        }
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(&title),
        include_str!("page.css")
    )
}

fn title(recorded: &Recorded) -> String {
    match recorded.runs.as_slice() {
        [] => "No runs".into(),
        [run] => name_of(run),
        all => format!("{} runs", all.len()),
    }
}

fn name_of(run: &RecordedRun) -> String {
    let title = run.title();
    let parts = [title.as_str(), run.run.date.as_str()];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { run.run.id.clone() } else { parts.join(", ") }
}

fn anchor(run: usize, phase: usize) -> String {
    format!("p{run}-{phase}")
}

/// Circumstances, subjects, and what was left out.
fn head_of_run(run: &RecordedRun, subjects: &[&str]) -> String {
    let mut out = String::from("<section class=\"run\">\n");
    for line in circumstances(&run.run) {
        out.push_str(&format!("<p>{}</p>\n", escaped(&line)));
    }
    if !run.run.arguments.is_empty() {
        let arguments = escaped(&run.run.arguments.join(" "));
        out.push_str(&format!("<p>Arguments: <code>{arguments}</code></p>\n"));
    }
    out.push_str("<ul class=\"subjects\">\n");
    for subject in run.subjects() {
        let place = subjects.iter().position(|one| *one == subject).unwrap_or(0);
        let what = run.run.subjects.get(subject).map_or("", String::as_str);
        out.push_str(&format!(
            "<li><span class=\"swatch\" style=\"background: {}\"></span><b>{}</b> {}</li>\n",
            ink::color(place),
            escaped(subject),
            escaped(what)
        ));
    }
    out.push_str("</ul>\n");
    for what in &run.run.left_out {
        out.push_str(&format!("<p class=\"left-out\">Left out: {}</p>\n", escaped(what)));
    }
    out.push_str("</section>\n");
    out
}

fn contents(recorded: &Recorded) -> String {
    if recorded.runs.iter().map(|run| run.phases.len()).sum::<usize>() < 2 {
        return String::new();
    }
    let mut out = String::from("<nav>\n");
    for (place, run) in recorded.runs.iter().enumerate() {
        let links = run.phases.iter().enumerate().map(|(number, phase)| {
            format!("<a href=\"#{}\">{}</a>", anchor(place, number), escaped(&phase.name))
        });
        let links: Vec<_> = links.collect();
        let experiment = escaped(&run.run.experiment);
        out.push_str(&format!("<p>{experiment}: {}</p>\n", links.join(" \u{b7} ")));
    }
    out.push_str("</nav>\n");
    out
}

/// What is worse than something else, the worst first.
fn summary(recorded: &Recorded, peers: &[String]) -> String {
    let losses = Losses::of(recorded, peers);
    let mut out = String::from("<section>\n<h2>What is worse, first</h2>\n");
    if losses.compared == 0 {
        out.push_str("<p>There is only one subject of each load, so nothing to compare.</p>\n");
    }
    if !peers.is_empty() {
        let peers = escaped(&peers.join(", "));
        let heading = format!("Worse than {peers}");
        out.push_str(&loss_table(&heading, &losses.behind_peers, losses.compared));
    }
    let heading =
        if peers.is_empty() { "Worse than the best other" } else { "Worse than the best mode" };
    out.push_str(&loss_table(heading, &losses.behind_others, losses.compared));
    if losses.too_few > 0 {
        out.push_str(&format!(
            "<p class=\"loud\">{} of {} comparisons have too few rounds to tell: three on each \
             side are needed.</p>\n",
            losses.too_few, losses.compared
        ));
    }
    if losses.compared > 0 {
        out.push_str(
            "<p class=\"small\">Only what is significant: the 95 % interval of the ratio leaves \
             out 1. Of figures that do not differ, about one in twenty looks as if it did. All \
             figures are in the tables below.</p>\n",
        );
    }
    out.push_str("</section>\n");
    out
}

fn loss_table(heading: &str, losses: &[Loss], compared: usize) -> String {
    if losses.is_empty() {
        if compared == 0 {
            return String::new();
        }
        return format!("<p>{heading}: nothing, significantly.</p>\n");
    }
    let (shown, folded) = losses.split_at(losses.len().min(LOSSES_SHOWN));
    let mut out = format!("<h3>{heading}</h3>\n{}", table(&rows(shown)));
    if !folded.is_empty() {
        out.push_str(&format!(
            "<details><summary>and {} more</summary>\n{}</details>\n",
            count(folded.len() as u64),
            table(&rows(folded))
        ));
    }
    out
}

fn rows(losses: &[Loss]) -> Table {
    let header =
        ["load", "subject", "figure", "median", "better", "of", "worse by", "95 % of ratio"];
    let row = |loss: &Loss| {
        vec![
            loss.load(),
            loss.subject.clone(),
            loss.figure(),
            rounded(loss.contrast.other.median),
            rounded(loss.contrast.base.median),
            loss.against.clone(),
            loss.how_much(),
            loss.contrast.interval_text(),
        ]
    };
    Table { header: header.map(Into::into).into(), rows: losses.iter().map(row).collect() }
}

/// A phase: its plots, and all its figures.
fn section(run: &RecordedRun, phase: &Phase, subjects: &[&str], anchor: &str) -> String {
    let mut out = format!("<section>\n<h2 id=\"{anchor}\">{}</h2>\n", escaped(&phase.name));
    let mut facts = vec![match phase.rounds() {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds"),
    }];
    if !phase.fixed.is_empty() {
        facts.insert(0, parameters(&phase.fixed));
    }
    out.push_str(&format!("<p>{}</p>\n", escaped(&facts.join("; "))));
    for warning in warnings(phase) {
        out.push_str(&format!("<p class=\"loud\">{}</p>\n", escaped(&warning)));
    }
    for plot in plots(run, phase, subjects) {
        out.push_str(&figure(&plot));
    }
    out.push_str(&format!(
        "<details><summary>All figures of {}</summary>\n{}</details>\n</section>\n",
        escaped(&phase.name),
        table(&all_figures(phase))
    ));
    out
}

fn figure(plot: &Plot) -> String {
    format!(
        "<figure>\n{}<figcaption>{}</figcaption>\n\
         <details><summary>Numbers</summary>\n{}</details>\n</figure>\n",
        plot.svg,
        escaped(&plot.caption),
        table(&plot.table)
    )
}

/// A row for each figure, a column for each case: median, and the least and the greatest.
fn all_figures(phase: &Phase) -> Table {
    let names = phase.cases.iter().map(crate::table::label);
    let header = std::iter::once(String::new()).chain(names).collect();
    let row = |figure: &Figure| {
        let cells = phase.cases.iter().map(|case| match case.summary(*figure) {
            None => "-".into(),
            Some(one) if one.rounds == 1 => rounded(one.median),
            Some(one) => {
                format!("{} ({} to {})", rounded(one.median), rounded(one.min), rounded(one.max))
            }
        });
        let title = match figure.unit() {
            "" => figure.title().to_owned(),
            unit => format!("{}, {unit}", figure.title()),
        };
        std::iter::once(title).chain(cells).collect()
    };
    let rows = Figure::ALL.iter().filter(|figure| phase.has(**figure)).map(row).collect();
    Table { header, rows }
}

fn table(table: &Table) -> String {
    let mut out = String::from("<div class=\"table\"><table>\n<thead><tr>");
    for cell in &table.header {
        out.push_str(&format!("<th>{}</th>", escaped(cell)));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            out.push_str(&format!("<td>{}</td>", escaped(cell)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}
