//! The calls of etcd's JSON gateway that are used. Keys and values are base64 there, and 64-bit numbers
//! are strings.

use std::{io, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    error::EtcdError,
    http::{self, HttpAnswer},
};

/// Longest time of a call. An etcd that is scripted by a test answers, however busy the machine is.
pub(super) const CALL: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyValue {
    pub(super) key: String,
    pub(super) value: String,
    /// The revision at which the key came to be; it has been there since.
    pub(super) created: u64,
    pub(super) lease: i64,
}

/// Keys and values at a revision.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) revision: u64,
    pub(super) entries: Vec<KeyValue>,
}

/// A change that a watch reports.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put(KeyValue),
    Delete(String),
}

/// What a watch says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// Changes, up to a revision.
    Changes(u64, Vec<Change>),
    /// It has ended: the revision is compacted, or whatever else. A new list is needed.
    Ended,
}

/// An etcd server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Etcd<'a>(pub(super) &'a str);

impl Etcd<'_> {
    /// Reads all keys that begin with `prefix`.
    pub(super) fn list(self, prefix: &str) -> Result<Range, EtcdError> {
        let body = json!({ "key": encode(prefix), "range_end": encode(&after(prefix)) });
        self.range(&body)
    }

    /// Reads one key.
    pub(super) fn read(self, key: &str) -> Result<Range, EtcdError> {
        self.range(&json!({ "key": encode(key) }))
    }

    fn range(self, body: &Value) -> Result<Range, EtcdError> {
        let reply = self.call("/v3/kv/range", body)?;
        let entries = match reply.get("kvs") {
            Some(Value::Array(all)) => all.iter().map(entry).collect::<Option<_>>(),
            None => Some(Vec::new()),
            Some(_) => None,
        };
        Ok(Range {
            revision: revision(&reply).ok_or_else(|| self.odd())?,
            entries: entries.ok_or_else(|| self.odd())?,
        })
    }

    /// Grants a lease of so many seconds, by an identifier that the caller chooses.
    pub(super) fn grant(self, lease: i64, seconds: u64) -> Result<(), EtcdError> {
        let body = json!({ "TTL": seconds, "ID": lease.to_string() });
        self.call("/v3/lease/grant", &body).map(drop)
    }

    /// Renews a lease. Returns whether it is there.
    pub(super) fn keep_alive(self, lease: i64) -> Result<bool, EtcdError> {
        let reply = self.call("/v3/lease/keepalive", &json!({ "ID": lease }))?;
        let result = reply.get("result").ok_or_else(|| self.odd())?;
        // A lease that is gone has a TTL of 0, or none.
        Ok(signed(&result["TTL"]).is_some_and(|left| left > 0))
    }

    /// Ends a lease, and with it its keys.
    pub(super) fn revoke(self, lease: i64) -> Result<(), EtcdError> {
        self.call("/v3/lease/revoke", &json!({ "ID": lease }))
            .map(drop)
    }

    /// Sets a key under a lease. Returns the revision.
    pub(super) fn put(self, key: &str, value: &str, lease: i64) -> Result<u64, EtcdError> {
        let reply = self.call("/v3/kv/put", &put(key, value, lease))?;
        revision(&reply).ok_or_else(|| self.odd())
    }

    /// Sets a key under a lease, if it is there and has been since the revision `created`. Returns whether
    /// it was.
    pub(super) fn put_if_kept(
        self,
        (key, value, lease): (&str, &str, i64),
        created: u64,
    ) -> Result<bool, EtcdError> {
        let body = json!({
            "compare": [{
                "key": encode(key), "target": "CREATE", "result": "EQUAL",
                "create_revision": created.to_string(),
            }],
            "success": [{ "request_put": put(key, value, lease) }],
        });
        let reply = self.call("/v3/kv/txn", &body)?;
        // The gateway leaves false out.
        Ok(reply["succeeded"].as_bool().unwrap_or(false))
    }

    /// Begins to watch the keys that begin with `prefix`, from `revision` on.
    pub(super) fn watch(self, prefix: &str, revision: u64) -> Result<HttpAnswer, EtcdError> {
        let body = json!({ "create_request": {
            "key": encode(prefix), "range_end": encode(&after(prefix)),
            "start_revision": revision.to_string(),
        }});
        let answer = http::post(self.0, "/v3/watch", &body.to_string(), CALL);
        answer.map_err(|error| self.failed(error))
    }

    fn call(self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let failed = |error| self.failed(error);
        let answer = http::post(self.0, path, &body.to_string(), CALL).map_err(failed)?;
        let status = answer.status;
        let body = answer.whole(CALL).map_err(failed)?;
        let value = serde_json::from_slice::<Value>(&body);
        if status == 200 {
            return value.map_err(|_| self.odd());
        }
        let value = value.unwrap_or_default();
        // Calls that stream say it one level deeper.
        let words = [
            &value["error"],
            &value["message"],
            &value["error"]["message"],
        ];
        let words = words.into_iter().find_map(Value::as_str).map(str::to_owned);
        let words = words.unwrap_or_else(|| format!("HTTP status {status}"));
        Err(EtcdError::Refused(self.0.to_owned(), words))
    }

    fn failed(self, error: io::Error) -> EtcdError {
        EtcdError::Io(self.0.to_owned(), error)
    }

    fn odd(self) -> EtcdError {
        EtcdError::Reply(self.0.to_owned())
    }
}

/// Parses a line of a watch. Whatever is no notice ends it.
pub(super) fn notice(line: &[u8]) -> Notice {
    parse_notice(line).unwrap_or(Notice::Ended)
}

fn parse_notice(line: &[u8]) -> Option<Notice> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let result = value.get("result")?;
    if result["canceled"].as_bool() == Some(true) {
        return None;
    }
    let events = match result.get("events") {
        Some(events) => events.as_array()?.iter().map(change).collect(),
        None => Some(Vec::new()),
    };
    Some(Notice::Changes(revision(result)?, events?))
}

fn change(event: &Value) -> Option<Change> {
    let kv = event.get("kv")?;
    match event.get("type").and_then(Value::as_str) {
        Some("DELETE") => Some(Change::Delete(text(&kv["key"])?)),
        // PUT is the first of its kind, which the gateway leaves out.
        Some("PUT") | None => Some(Change::Put(entry(kv)?)),
        Some(_) => None,
    }
}

fn put(key: &str, value: &str, lease: i64) -> Value {
    json!({ "key": encode(key), "value": encode(value), "lease": lease.to_string() })
}

fn entry(kv: &Value) -> Option<KeyValue> {
    Some(KeyValue {
        key: text(&kv["key"])?,
        // Empty values are left out.
        value: match kv.get("value") {
            Some(value) => text(value)?,
            None => String::new(),
        },
        created: number(&kv["create_revision"])?,
        lease: signed(&kv["lease"]).unwrap_or(0),
    })
}

fn revision(reply: &Value) -> Option<u64> {
    number(&reply["header"]["revision"])
}

fn number(value: &Value) -> Option<u64> {
    let text = value.as_str();
    text.map_or_else(|| value.as_u64(), |text| text.parse().ok())
}

fn signed(value: &Value) -> Option<i64> {
    let text = value.as_str();
    text.map_or_else(|| value.as_i64(), |text| text.parse().ok())
}

fn text(value: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok()
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

/// The first key after those that begin with `prefix`, which ends with a slash.
fn after(prefix: &str) -> String {
    let stem = prefix.strip_suffix('/').unwrap_or(prefix);
    format!("{stem}0")
}
