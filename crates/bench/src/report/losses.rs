//! Figures that are significantly worse than others of the same run: the beginning of a report.

use crate::compare::{Contrast, Verdict};
use crate::figure::Figure;
use crate::numeral::{parameters, rounded};
use crate::results::{Case, Phase, Results, RunResults};
use crate::statistics::Evidence;

/// A figure in which one subject is worse than another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Loss {
    /// Run and phase.
    phase: String,
    /// The setting in which it is worst.
    setting: String,
    /// Other settings in which it is worse too.
    others: usize,
    /// The subject that is worse.
    pub(crate) subject: String,
    /// The subject that is better.
    pub(crate) against: String,
    /// Whether one of the two made errors, so that its figures say little.
    pub(crate) is_doubtful: bool,
    /// The better is the base.
    pub(crate) contrast: Contrast,
}

/// All losses of some runs, figure by figure as tables have them, the greatest of each first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Losses {
    /// Against the peers that were named.
    pub(crate) behind_peers: Vec<Loss>,
    /// Against the best of the other subjects that are no peers.
    pub(crate) behind_others: Vec<Loss>,
    /// Comparisons that were made.
    pub(crate) compared: usize,
    /// Of these, with too few rounds for a verdict.
    pub(crate) too_few: usize,
}

/// Figures that are compared with subjects that are no peers. Each of these has its purpose, so a
/// loss in any other figure does not matter.
const BETWEEN_OTHERS: [Figure; 8] = [
    Figure::MibPerSec,
    Figure::OperationsPerSec,
    Figure::Secs,
    Figure::LatencyP99Us,
    Figure::ServerSecsPerGib,
    Figure::ServerUsPerOperation,
    Figure::ServerRssMibMax,
    Figure::PageCacheMibMax,
];

impl Losses {
    /// Of all runs; `peers` are the subjects that the others are measured by.
    pub(crate) fn of(results: &Results, peers: &[String]) -> Self {
        let mut found = Self::default();
        for run in &results.runs {
            for phase in run.phases.iter().filter(|phase| !phase.is_calibration()) {
                found.add(run, phase, peers);
            }
        }
        found.behind_peers = worst_first(found.behind_peers);
        found.behind_others = worst_first(found.behind_others);
        found
    }

    fn add(&mut self, run: &RunResults, phase: &Phase, peers: &[String]) {
        let is_peer = |case: &Case| peers.contains(&case.subject);
        for case in phase.cases.iter().filter(|case| !is_peer(case)) {
            let others = phase
                .cases
                .iter()
                .filter(|other| other.setting == case.setting && other.subject != case.subject);
            let others: Vec<_> = others.collect();
            for figure in Figure::ALL.iter().filter(|figure| is_of_its_own(case, **figure)) {
                for peer in others.iter().filter(|other| is_peer(other)) {
                    let loss = self.compare(run, phase, *figure, case, peer);
                    self.behind_peers.extend(loss);
                }
                if BETWEEN_OTHERS.contains(figure) {
                    let own = others.iter().copied().filter(|other| !is_peer(other));
                    let best = best(own, *figure);
                    let loss = best.and_then(|best| self.compare(run, phase, *figure, case, best));
                    self.behind_others.extend(loss);
                }
            }
        }
    }

    fn compare(
        &mut self,
        run: &RunResults,
        phase: &Phase,
        figure: Figure,
        case: &Case,
        better: &Case,
    ) -> Option<Loss> {
        let contrast = Contrast::of(figure, better, case)?;
        self.compared += 1;
        self.too_few += usize::from(contrast.comparison.evidence == Evidence::TooFewRounds);
        (contrast.verdict() == Verdict::Worse).then(|| Loss {
            phase: phase_of(run, phase),
            setting: parameters(&case.setting),
            others: 0,
            subject: case.subject.clone(),
            against: better.subject.clone(),
            is_doubtful: !case.is_sound() || !better.is_sound(),
            contrast,
        })
    }
}

impl Loss {
    fn is_like(&self, other: &Self) -> bool {
        self.phase == other.phase
            && self.subject == other.subject
            && self.against == other.against
            && self.contrast.figure == other.contrast.figure
    }

    /// Experiment, phase, and the setting in which it is worst.
    pub(crate) fn load(&self) -> String {
        let mut text = self.phase.clone();
        if !self.setting.is_empty() {
            text.push_str(&format!(", {}", self.setting));
        }
        if self.others > 0 {
            text.push_str(&format!(" (and {} other settings)", self.others));
        }
        text
    }

    /// How much worse: `x 1.25`, and whether it is doubtful.
    pub(crate) fn how_much(&self) -> String {
        let factor = self.contrast.factor();
        let much =
            if factor.is_finite() { format!("x {}", rounded(factor)) } else { "from 0".into() };
        if self.is_doubtful { format!("{much}, with errors") } else { much }
    }
}

/// Experiment and phase.
fn phase_of(run: &RunResults, phase: &Phase) -> String {
    let title = run.title();
    let parts = [phase.name.as_str(), &title];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("; ")
}

/// Rates first, then times and costs, for a factor of one figure is no measure of another; of each
/// the greatest loss first. What is worse in several settings of a phase stands there once.
fn worst_first(mut losses: Vec<Loss>) -> Vec<Loss> {
    losses.sort_by(|a, b| {
        let greater = b.contrast.factor().total_cmp(&a.contrast.factor());
        a.contrast.figure.cmp(&b.contrast.figure).then(greater)
    });
    let mut worst: Vec<Loss> = Vec::new();
    for loss in losses {
        match worst.iter_mut().find(|one| one.is_like(&loss)) {
            Some(one) => {
                one.others += 1;
                one.is_doubtful |= loss.is_doubtful;
            }
            None => worst.push(loss),
        }
    }
    worst
}

/// The case with the best median of a figure.
fn best<'a>(cases: impl Iterator<Item = &'a Case>, figure: Figure) -> Option<&'a Case> {
    let worth = |case: &Case| match figure.better() {
        crate::figure::Better::Higher => case.median(figure),
        crate::figure::Better::Lower | crate::figure::Better::Neither => {
            case.median(figure).map(|median| -median)
        }
    };
    cases
        .filter_map(|case| Some((worth(case)?, case)))
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, case)| case)
}

/// Whether a figure is more than another one in other words, as a time is of a rate.
fn is_of_its_own(case: &Case, figure: Figure) -> bool {
    let has = |figure| case.median(figure).is_some();
    match figure {
        Figure::OperationsPerSec => !has(Figure::MibPerSec),
        Figure::Secs => !has(Figure::MibPerSec) && !has(Figure::OperationsPerSec),
        Figure::ServerUserSecsPerGib
        | Figure::ServerSystemSecsPerGib
        | Figure::ServerUsPerOperation => !has(Figure::ServerSecsPerGib),
        Figure::DirtyMibMax => !has(Figure::PageCacheMibMax),
        Figure::HeldMibMax => !has(Figure::PageCacheMibMax) || !has(Figure::ServerRssMibMax),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;
    use crate::samples::{loads, records};

    fn losses(rounds: u32, peers: &[&str]) -> Losses {
        let all = loads("read", &["ours", "peer", "other"], rounds);
        let peers: Vec<String> = peers.iter().map(|peer| (*peer).into()).collect();
        Losses::of(&Results::group(&records("r", all)), &peers)
    }

    fn names(losses: &[Loss]) -> Vec<(&str, &str, Figure)> {
        let mut names = Vec::new();
        for one in losses {
            names.push((one.subject.as_str(), one.against.as_str(), one.contrast.figure));
        }
        names
    }

    #[test]
    fn rates_stand_first_and_the_greatest_loss_of_each_figure() {
        let found = losses(5, &["peer"]);
        let peers = names(&found.behind_peers);
        assert!(peers.contains(&("other", "peer", Figure::MibPerSec)), "{peers:?}");
        assert!(!peers.iter().any(|(subject, _, _)| *subject == "peer"), "{peers:?}");
        // The first has no page cache and is the fastest: it loses nothing.
        assert!(!peers.iter().any(|(subject, _, _)| *subject == "ours"), "{peers:?}");
        let order = |a: &Loss, b: &Loss| match a.contrast.figure.cmp(&b.contrast.figure) {
            Ordering::Less => true,
            Ordering::Equal => a.contrast.factor() >= b.contrast.factor(),
            Ordering::Greater => false,
        };
        assert!(found.behind_peers.is_sorted_by(order), "{peers:?}");
        assert!(found.behind_others.is_sorted_by(order));
        let others = names(&found.behind_others);
        assert_eq!(others[0], ("other", "ours", Figure::MibPerSec));
        let cache = ("other", "ours", Figure::PageCacheMibMax);
        let at = others.iter().position(|one| *one == cache).unwrap();
        assert_eq!(found.behind_others[at].how_much(), "from 0");
        assert!(!others.iter().any(|(_, against, _)| *against == "peer"), "{others:?}");
    }

    #[test]
    fn the_servers_processor_time_is_one_loss() {
        let found = losses(5, &["peer"]);
        for (all, against) in [(&found.behind_peers, "peer"), (&found.behind_others, "ours")] {
            let costs =
                names(all).into_iter().filter(|(.., figure)| figure.title().starts_with("server"));
            let costs: Vec<_> = costs.collect();
            assert_eq!(costs, [("other", against, Figure::ServerSecsPerGib)]);
        }
    }

    #[test]
    fn without_a_peer_each_is_held_against_the_best() {
        let found = losses(5, &[]);
        assert!(found.behind_peers.is_empty());
        let others = names(&found.behind_others);
        assert!(others.contains(&("peer", "ours", Figure::MibPerSec)), "{others:?}");
        assert!(others.contains(&("other", "ours", Figure::MibPerSec)), "{others:?}");
        assert!(!others.iter().any(|(_, _, figure)| *figure == Figure::Secs), "{others:?}");
    }

    #[test]
    fn too_few_rounds_lose_nothing_and_are_counted() {
        let found = losses(2, &["peer"]);
        assert!(found.behind_peers.is_empty() && found.behind_others.is_empty());
        assert!(found.compared > 0);
        assert_eq!(found.too_few, found.compared);
    }
}
