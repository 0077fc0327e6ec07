//! Place of a remote's chunks: a bucket, or a folder that several hosts see. Each operation is one
//! attempt; this module alone turns failures into reasons. It does not interpret bytes.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3;
use object_store::client::HttpErrorKind;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tributary_protocol::ChunkKey;

use super::http::{Cause, Connector, Refused};
use super::limits::RemoteLimits;
use super::reason::Reason;
use super::url::{RemoteError, Target, client};
use crate::folder::{ENDING, Entry, Folder, open_file};

/// Place of chunks. The client of a bucket holds the credentials, so it is never printed.
pub enum Place {
    /// In a bucket, under a prefix.
    Bucket(AmazonS3, Path),
    /// In a folder.
    Folder(Arc<Folder>),
}

impl Place {
    /// Opens the place of a URL.
    pub fn open(url: &str, limits: &RemoteLimits, settings: &[(String, String)]) -> Result<Self, RemoteError> {
        match Target::parse(url)? {
            Target::Bucket(bucket, prefix) => {
                let connector = Connector { timeout: limits.connect };
                Ok(Place::Bucket(client(&bucket, settings, connector)?, prefix))
            }
            Target::Folder(path) => match Folder::open(&path, limits.is_shared) {
                Ok(folder) => Ok(Place::Folder(Arc::new(folder))),
                Err(error) => Err(RemoteError::Folder(path, error)),
            },
        }
    }

    /// A chunk's bytes, if there are at most `most_bytes`; more are not read.
    pub async fn get(&self, key: &ChunkKey, most_bytes: u64) -> Result<Bytes, Reason> {
        match self {
            Place::Bucket(store, prefix) => {
                let found = store.get(&name(prefix, key)).await.map_err(|error| reason(&error))?;
                if found.meta.size > most_bytes {
                    return Err(Reason::TooLarge);
                }
                // HTTP ends the body at the size that it has said.
                found.bytes().await.map_err(|error| reason(&error))
            }
            Place::Folder(folder) => {
                let path = folder.path_of(key);
                blocking(move || {
                    let file = open_file(&path)?;
                    let bytes = file.metadata()?.len();
                    if bytes > most_bytes {
                        return Ok(Err(Reason::TooLarge));
                    }
                    let mut read = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
                    file.take(bytes).read_to_end(&mut read)?;
                    Ok(Ok(Bytes::from(read)))
                })
                .await?
            }
        }
    }

    /// Keeps a chunk. It is there whole or not at all; one that is there already is replaced.
    pub async fn put(&self, key: &ChunkKey, bytes: Bytes) -> Result<(), Reason> {
        match self {
            Place::Bucket(store, prefix) => {
                store.put(&name(prefix, key), bytes.into()).await.map(|_| ()).map_err(|error| reason(&error))
            }
            Place::Folder(folder) => {
                let (folder, key) = (Arc::clone(folder), *key);
                blocking(move || folder.write(&key, &bytes)).await
            }
        }
    }

    /// Adds existing chunks to the known ones, up to `most`. A call after a failure continues where
    /// the last one stopped. `patience` bounds the time from one part of the list to the next.
    pub async fn list(&self, most: usize, patience: Duration, known: &mut Listed) -> Result<(), Reason> {
        let (store, prefix) = match self {
            Place::Bucket(store, prefix) => (store, prefix),
            Place::Folder(folder) => {
                let folder = Arc::clone(folder);
                known.entries =
                    timeout(patience, blocking(move || folder.entries())).await.map_err(|_| Reason::Timeout)??;
                known.entries.truncate(most);
                return Ok(());
            }
        };
        let mut objects = match &known.last {
            Some(last) => store.list_with_offset(Some(prefix), last),
            None => store.list(Some(prefix)),
        };
        while known.entries.len() < most {
            let next = timeout(patience, objects.try_next()).await.map_err(|_| Reason::Timeout)?;
            let Some(object) = next.map_err(|error| reason(&error))? else { break };
            let used = SystemTime::from(object.last_modified);
            let key = key_of(prefix, &object.location);
            known.entries.extend(key.map(|key| Entry { key, bytes: object.size, used }));
            known.last = Some(object.location);
        }
        Ok(())
    }
}

/// Known chunks, and the place at which the list continues.
#[derive(Default)]
pub struct Listed {
    /// The chunks.
    pub entries: Vec<Entry>,
    /// The last object that was looked at.
    last: Option<Path>,
}

/// Runs work that waits for a disk, on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Reason> {
    match spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Reason::Missing,
            io::ErrorKind::PermissionDenied => Reason::Denied,
            _ => Reason::Server,
        }),
        // The runtime ends.
        Err(_) => Err(Reason::Down),
    }
}

/// A chunk's object.
fn name(prefix: &Path, key: &ChunkKey) -> Path {
    let key = key.to_string();
    prefix.clone().join(&key[..2]).join(key + ENDING)
}

/// Key of the chunk in an object, if it is a chunk.
fn key_of(prefix: &Path, object: &Path) -> Option<ChunkKey> {
    let key = object.filename()?.strip_suffix(ENDING)?.parse().ok()?;
    (name(prefix, &key) == *object).then_some(key)
}

/// The reason for an error of the library.
fn reason(error: &Error) -> Reason {
    match error {
        // S3's own word for it, in the body of its answer.
        Error::NotFound { source, .. } if source.to_string().contains("NoSuchBucket") => Reason::NoBucket,
        Error::NotFound { .. } => Reason::Missing,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Reason::Denied,
        error => match Cause::of(error) {
            Some(Cause::Way(HttpErrorKind::Timeout)) => Reason::Timeout,
            Some(Cause::Way(HttpErrorKind::Connect | HttpErrorKind::Request | HttpErrorKind::Interrupted)) => {
                Reason::Unreachable
            }
            Some(Cause::List(Refused(401 | 403))) => Reason::Denied,
            Some(Cause::List(Refused(404))) => Reason::NoBucket,
            _ => Reason::Server,
        },
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::KeySpace;

    use super::*;

    #[test]
    fn an_objects_name_is_that_of_a_file_and_leads_back() {
        let key = KeySpace::new([0; 32], "f32").chunk(&[], &[1], &[]);
        for (prefix, before) in [("", ""), ("a/b", "a/b/")] {
            let (prefix, text) = (Path::from(prefix), key.to_string());
            let object = name(&prefix, &key);
            assert_eq!(object.as_ref(), format!("{before}{}/{text}.safetensors", &text[..2]));
            assert_eq!(key_of(&prefix, &object), Some(key));
            let others = [
                format!("{before}{text}.safetensors"),
                format!("{before}zz/{text}.safetensors"),
                object.to_string() + ".old",
            ];
            assert!(others.iter().all(|other| key_of(&prefix, &Path::from(other.as_str())).is_none()), "{others:?}");
        }
    }
}
