//! Consequences of a valid configuration that its author may not expect.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::export::{Export, ExportTable};

/// A sentence for each export whose rules do not bind all of its clients: its directory is part of
/// another export's, with other rules.
pub(super) fn bypassed_rules(exports: &ExportTable) -> Vec<String> {
    let mut sentences = Vec::new();
    for (place, inner) in exports.iter().enumerate() {
        for (other_place, outer) in exports.iter().enumerate() {
            // Of two exports of one directory, the later one has the sentence.
            let is_outer = if inner.path == outer.path {
                other_place < place
            } else {
                inner.path.starts_with(&outer.path)
            };
            if is_outer && !has_same_rules(inner, outer) && is_on_one_mount(inner, outer) {
                let is = if inner.path == outer.path { "also" } else { "part of" };
                let (inner, outer) = (&inner.name, &outer.name);
                sentences.push(format!(
                    "the directory of the export {inner} is {is} that of {outer}: clients of \
                     {outer} reach its files by the rules of {outer}"
                ));
            }
        }
    }
    sentences
}

fn has_same_rules(a: &Export, b: &Export) -> bool {
    (&a.rules, &a.metadata_servers) == (&b.rules, &b.metadata_servers)
}

/// An export ends at the file systems that are mounted below it.
fn is_on_one_mount(inner: &Export, outer: &Export) -> bool {
    let mount = |path: &Path| {
        let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
    };
    match (mount(&inner.path), mount(&outer.path)) {
        (Some(inner), Some(outer)) => inner == outer,
        // Before Linux 5.8.
        (None, _) | (_, None) => true,
    }
}
