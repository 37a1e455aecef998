//! The doctor's findings, and their forms: text for people, JSON for scripts.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Serialize;
use serde_json::Value;

/// The outcome of a check. A worse one compares greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Works,
    /// It does not work, but the user can change that.
    WouldWorkIf,
    Cannot,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    pub(crate) status: Status,
    /// What was found; if it does not work, why.
    pub(crate) reason: String,
    /// The command or the change that helps.
    #[serde(rename = "try", skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
    /// Further values found, by name; fields of the JSON object.
    #[serde(flatten)]
    pub(crate) values: BTreeMap<&'static str, Value>,
}

impl Check {
    pub(crate) fn works(reason: impl Into<String>) -> Self {
        Self::new(Status::Works, reason.into(), None)
    }

    pub(crate) fn would_work_if(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Status::WouldWorkIf, reason.into(), Some(advice.into()))
    }

    pub(crate) fn cannot(reason: impl Into<String>) -> Self {
        Self::new(Status::Cannot, reason.into(), None)
    }

    pub(crate) fn fact(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.values.insert(name, value.into());
        self
    }

    fn new(status: Status, reason: String, advice: Option<String>) -> Self {
        Self {
            status,
            reason,
            advice,
            values: BTreeMap::new(),
        }
    }
}

/// Checks by name.
pub(crate) type Checks = BTreeMap<&'static str, Check>;

/// A fabric: the worst of its checks, and all of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FabricReport {
    #[serde(flatten)]
    pub(crate) verdict: Check,
    /// Whether most hosts lack it, so that its absence is no failure.
    pub(crate) optional: bool,
    pub(crate) checks: Checks,
}

impl FabricReport {
    pub(crate) fn new(checks: Checks) -> Self {
        let worst = checks.values().max_by_key(|check| check.status);
        let verdict = match worst {
            Some(worst) if worst.status > Status::Works => {
                Check::new(worst.status, worst.reason.clone(), worst.advice.clone())
            }
            _ => Check::works("all that it needs is there"),
        };
        Self {
            verdict,
            optional: false,
            checks,
        }
    }

    /// Marks the fabric as optional.
    pub(crate) fn optional(self) -> Self {
        Self {
            optional: true,
            ..self
        }
    }
}

/// All findings. Its JSON format only ever gains fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) fabrics: BTreeMap<&'static str, FabricReport>,
    pub(crate) host: Checks,
}

impl Report {
    /// Returns whether every fabric that is not optional works.
    pub(crate) fn all_fabrics_work(&self) -> bool {
        self.fabrics
            .values()
            .filter(|fabric| !fabric.optional)
            .all(|fabric| fabric.verdict.status == Status::Works)
    }

    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Formats text for people: one line per check, with advice below those that need it.
    pub(crate) fn to_text(&self) -> String {
        let mut out = String::new();
        for (name, fabric) in &self.fabrics {
            let _ = writeln!(out, "{name}: {}", headline(&fabric.verdict));
            lines(&mut out, &fabric.checks);
        }
        let _ = writeln!(out, "host:");
        lines(&mut out, &self.host);
        out
    }
}

fn headline(verdict: &Check) -> &'static str {
    match verdict.status {
        Status::Works => "works",
        Status::WouldWorkIf => "would work, but",
        Status::Cannot => "cannot work here",
    }
}

fn lines(out: &mut String, checks: &Checks) {
    for (name, check) in checks {
        let mark = match check.status {
            Status::Works => "ok",
            Status::WouldWorkIf => "!!",
            Status::Cannot => "no",
        };
        let name = name.replace('_', " ");
        let _ = writeln!(out, "  {mark}  {name:<18} {}", check.reason);
        if let Some(advice) = &check.advice {
            let _ = writeln!(out, "      {:<18} try: {advice}", "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let sealed = Check::works("sealed").fact("bytes", 4096);
        let closed = Check::would_work_if("/tmp is closed", "chmod");
        let shm = FabricReport::new(BTreeMap::from([
            ("memfd", sealed.clone()),
            ("socket_dir", closed),
        ]));
        let gone = FabricReport::new(BTreeMap::from([
            ("memfd", sealed),
            ("x", Check::cannot("gone")),
        ]));
        let fabrics = BTreeMap::from([("shm", shm), ("verbs", gone.optional())]);
        Report {
            fabrics,
            host: BTreeMap::from([("cpus", Check::works("2"))]),
        }
    }

    #[test]
    fn fabric_state_is_that_of_its_worst_check() {
        let report = report();
        assert_eq!(report.fabrics["shm"].verdict.status, Status::WouldWorkIf);
        assert_eq!(
            report.fabrics["shm"].verdict.advice.as_deref(),
            Some("chmod")
        );
        assert_eq!(report.fabrics["verbs"].verdict.status, Status::Cannot);
        assert!(!report.all_fabrics_work());
        let fine = FabricReport::new(BTreeMap::from([("memfd", Check::works("sealed"))]));
        assert_eq!(fine.verdict.status, Status::Works);
        let mut healed = report;
        healed.fabrics.insert("shm", fine);
        assert!(healed.all_fabrics_work(), "what is optional is not missed");
    }

    #[test]
    fn json_has_the_documented_shape() {
        let json: Value = serde_json::from_str(&report().to_json().unwrap()).unwrap();
        let shm = &json["fabrics"]["shm"];
        assert_eq!(shm["status"], "would_work_if");
        assert_eq!(shm["reason"], "/tmp is closed");
        assert_eq!(shm["try"], "chmod");
        assert_eq!(shm["checks"]["memfd"]["bytes"], 4096);
        assert_eq!(json["fabrics"]["verbs"]["status"], "cannot");
        assert_eq!(json["fabrics"]["verbs"]["optional"], true);
        assert_eq!(json["host"]["cpus"]["status"], "works");
    }

    #[test]
    fn text_report_names_what_to_try() {
        let text = "\
shm: would work, but
  ok  memfd              sealed
  !!  socket dir         /tmp is closed
                         try: chmod
verbs: cannot work here
  ok  memfd              sealed
  no  x                  gone
host:
  ok  cpus               2
";
        assert_eq!(report().to_text(), text);
    }
}
