//! The doctor's findings, and their forms: text for people, JSON for scripts.

use std::{collections::BTreeMap, fmt::Write as _};

use herdwick_providers::{Check, Checks, Fact, Status};
use serde::Serialize;
use serde_json::Value;

/// A fabric: the worst of its checks, and all of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FabricReport {
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
#[derive(Clone, Debug, PartialEq)]
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
        let Self { fabrics, host } = self;
        let fabrics = fabrics.iter().map(|(name, report)| (*name, report.into()));
        serde_json::to_string_pretty(&ReportJson {
            fabrics: fabrics.collect(),
            host: all(host),
        })
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

/// [`Check`], in JSON.
#[derive(Serialize)]
struct CheckJson<'a> {
    status: &'static str,
    reason: &'a str,
    #[serde(rename = "try", skip_serializing_if = "Option::is_none")]
    advice: Option<&'a str>,
    #[serde(flatten)]
    values: BTreeMap<&'static str, Value>,
}

/// [`FabricReport`], in JSON.
#[derive(Serialize)]
struct FabricJson<'a> {
    #[serde(flatten)]
    verdict: CheckJson<'a>,
    optional: bool,
    checks: BTreeMap<&'static str, CheckJson<'a>>,
}

/// [`Report`], in JSON.
#[derive(Serialize)]
struct ReportJson<'a> {
    fabrics: BTreeMap<&'static str, FabricJson<'a>>,
    host: BTreeMap<&'static str, CheckJson<'a>>,
}

impl<'a> From<&'a Check> for CheckJson<'a> {
    fn from(check: &'a Check) -> Self {
        let values = check.values.iter().map(|(name, fact)| (*name, value(fact)));
        Self {
            status: match check.status {
                Status::Works => "works",
                Status::WouldWorkIf => "would_work_if",
                Status::Cannot => "cannot",
            },
            reason: &check.reason,
            advice: check.advice.as_deref(),
            values: values.collect(),
        }
    }
}

impl<'a> From<&'a FabricReport> for FabricJson<'a> {
    fn from(report: &'a FabricReport) -> Self {
        Self {
            verdict: (&report.verdict).into(),
            optional: report.optional,
            checks: all(&report.checks),
        }
    }
}

fn all(checks: &Checks) -> BTreeMap<&'static str, CheckJson<'_>> {
    let checks = checks.iter();
    checks.map(|(name, check)| (*name, check.into())).collect()
}

fn value(fact: &Fact) -> Value {
    match fact {
        Fact::Absent => Value::Null,
        Fact::Flag(flag) => (*flag).into(),
        Fact::Number(number) => (*number).into(),
        Fact::Text(text) => text.as_str().into(),
        Fact::List(list) => list.clone().into(),
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
        let sealed = Check::works("sealed").fact("bytes", 4096_usize);
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
