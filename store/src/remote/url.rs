//! Meaning of a store's URL and its settings. Neither may hold credentials: a URL with credentials
//! is refused, and no message repeats it.

use std::io;
use std::path::PathBuf;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{ClientConfigKey, RetryConfig};

use super::http::Connector;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The URL is of no kind that is known.
    #[error("a store's URL is s3://BUCKET, s3://BUCKET/PREFIX or file:///FOLDER; this one {0}")]
    Url(&'static str),
    /// The URL, or a setting that is one, has credentials in it.
    #[error(
        "{0} has a user, a password or a query in it: credentials belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Credentials(String),
    /// A setting is one that does nothing here.
    #[error("{0} is set, and does nothing here: unset it")]
    Unknown(String),
    /// The settings do not fit together.
    #[error("settings of the store: {0}")]
    Settings(String),
    /// The folder cannot be used.
    #[error("folder of the store {0}: {1}")]
    Folder(PathBuf, io::Error),
    /// The system gives no thread.
    #[error("a thread for the store: {0}")]
    Thread(io::Error),
}

/// Target of a URL.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// A bucket, and the prefix of its chunks' names.
    Bucket(String, Path),
    /// A folder.
    Folder(PathBuf),
}

impl Target {
    /// Reads a URL.
    pub fn parse(url: &str) -> Result<Self, RemoteError> {
        if let Some(path) = url.strip_prefix("file://") {
            // A path is taken literally: any character may be part of a name.
            return match path.starts_with('/') {
                true if path.split('/').any(|part| part.to_ascii_lowercase().replace("%2e", ".") == "..") => {
                    Err(RemoteError::Url("has `..` in its path: name the folder itself"))
                }
                true => Ok(Target::Folder(PathBuf::from(path))),
                false => Err(RemoteError::Url("names a host, or a folder that does not begin with /")),
            };
        }
        without_credentials("the store's URL", url)?;
        let rest = url.strip_prefix("s3://").ok_or(RemoteError::Url("begins otherwise"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let of_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        if bucket.is_empty() || !bucket.chars().all(of_name) {
            return Err(RemoteError::Url("names no bucket"));
        }
        let prefix = Path::parse(prefix).map_err(|_| RemoteError::Url("has a prefix that is no path"))?;
        Ok(Target::Bucket(bucket.to_owned(), prefix))
    }
}

fn without_credentials(what: &str, url: &str) -> Result<(), RemoteError> {
    if url.contains(['@', '?', '#']) { Err(RemoteError::Credentials(what.to_owned())) } else { Ok(()) }
}

/// The library's client of a bucket, with these settings (`AWS_..`). Variables that the library
/// does not know belong to other programs.
pub fn client(
    bucket: &str,
    settings: &[(String, String)],
    connector: Connector,
) -> Result<object_store::aws::AmazonS3, RemoteError> {
    // Attempts are made outside, where each has its limit; the library's own limit says when the
    // last one begins, not when it ends.
    let no_retries = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let mut builder = AmazonS3Builder::new().with_retry(no_retries).with_http_connector(connector);
    for (name, value) in settings {
        let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() else { continue };
        match key {
            AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp) => {}
            // Proxies, times and versions of HTTP are the connector's, which has its own.
            AmazonS3ConfigKey::Client(_) => return Err(RemoteError::Unknown(name.clone())),
            AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint => without_credentials(name, value)?,
            _ => {}
        }
        builder = builder.with_config(key, value);
    }
    builder.with_bucket_name(bucket).build().map_err(|error| RemoteError::Settings(without_values(&error, settings)))
}

/// Message of an error, with names in place of settings' values: one of them may be a secret.
fn without_values(error: &object_store::Error, settings: &[(String, String)]) -> String {
    // A shorter value is no secret, and may be a part of any word.
    let secret = |(_, value): &&(String, String)| value.len() > 4;
    settings.iter().filter(secret).fold(error.to_string(), |said, (name, value)| said.replace(value, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lead_to_a_bucket_or_a_folder() {
        let bucket = |name: &str, prefix: &str| Target::Bucket(name.to_owned(), Path::from(prefix));
        let wanted = [
            ("s3://chunks", bucket("chunks", "")),
            ("s3://chunks/", bucket("chunks", "")),
            ("s3://my.chunks-1/a/b/", bucket("my.chunks-1", "a/b")),
            ("file:///share/a b@c", Target::Folder("/share/a b@c".into())),
        ];
        for (url, target) in wanted {
            assert_eq!(Target::parse(url).expect(url), target);
        }
    }

    #[test]
    fn other_urls_are_refused_and_secrets_are_not_repeated() {
        let refused = |url: &str| Target::parse(url).expect_err(url);
        for url in [
            "",
            "chunks",
            "http://host/chunks",
            "s3://",
            "s3:///a",
            "s3://a b",
            "s3://a/b//c",
            "file://host/a",
            "file://a",
            "file:///a/../../etc",
            "file:///a/..",
        ] {
            assert!(matches!(refused(url), RemoteError::Url(_)), "{url}");
        }
        for url in
            ["s3://me:hunter2@chunks", "s3://chunks/a?secret=hunter2", "http://me:hunter2@host", "s3://chunks#hunter2"]
        {
            let error = refused(url);
            assert!(matches!(error, RemoteError::Credentials(_)), "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn settings_that_do_nothing_or_do_not_fit_are_refused_by_name() {
        let refused = |settings: &[(&str, &str)]| {
            let mut all = vec![("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2-hunter2".to_owned())];
            all.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
            let error = client("chunks", &all, Connector { timeout: std::time::Duration::from_secs(1) });
            let error = error.expect_err("refused");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
            error.to_string()
        };
        let key = ("AWS_ACCESS_KEY_ID", "me");
        assert!(refused(&[]).contains("AccessKeyId"));
        assert!(
            refused(&[key, ("AWS_ENDPOINT_URL", "http://me:hunter2@host")]).starts_with("AWS_ENDPOINT_URL has a user")
        );
        assert!(
            refused(&[key, ("AWS_PROXY_URL", "http://proxy")]).starts_with("AWS_PROXY_URL is set, and does nothing")
        );
        let said = refused(&[key, ("AWS_UNSIGNED_PAYLOAD", "hunter2-hunter2")]);
        assert!(said.starts_with("settings of the store:"), "{said}");
    }
}
