//! HTTP/1.1 for the object store's library: connections over TCP and TLS, kept and used again. The
//! machine's certificates decide on trust. It limits only the time of connecting, follows no
//! redirect and uses no proxy.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};

/// Time for which an idle connection is kept: shorter than stores keep theirs.
const IDLE: Duration = Duration::from_secs(15);

/// Makes clients for the library, which asks for one for its objects and for one where it finds
/// credentials.
#[derive(Debug)]
pub struct Connector {
    /// Longest time for connecting.
    pub timeout: Duration,
}

/// A client with its connections.
#[derive(Debug)]
struct Connections(Client<HttpsConnector<legacy::connect::HttpConnector>, HttpRequestBody>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut tcp = legacy::connect::HttpConnector::new();
        tcp.set_connect_timeout(Some(self.timeout));
        tcp.set_nodelay(true);
        // TLS is the next layer's.
        tcp.enforce_http(false);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let may_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|may| may == "true");
        let https = match HttpsConnectorBuilder::new().with_provider_and_native_roots(Arc::clone(&provider)) {
            Ok(https) => https,
            // A small image may have no certificates, and need none: over TLS no server is trusted
            // then.
            Err(_) if may_http => HttpsConnectorBuilder::new().with_tls_config(believes_nobody(provider)),
            Err(source) => return Err(object_store::Error::Generic { store: "TLS", source: Box::new(source) }),
        };
        let https = if may_http { https.https_or_http() } else { https.https_only() };
        let https = https.enable_http1().wrap_connector(tcp);
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new());
        Ok(HttpClient::new(Connections(client.build(https))))
    }
}

fn believes_nobody(provider: Arc<rustls::crypto::CryptoProvider>) -> rustls::ClientConfig {
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions that the provider has")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

/// The library's type for an asynchronous function.
type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Connections {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        let is_list = request.uri().query().is_some_and(|query| query.contains("list-type="));
        let answer = self.0.request(request);
        Box::pin(async move {
            let (head, body) = answer.await.map_err(broken)?.into_parts();
            // The library's errors have the status of a request for an object, but not of one for a
            // list.
            if is_list && head.status.is_client_error() {
                return Err(HttpError::new(HttpErrorKind::Unknown, Refused(head.status.as_u16())));
            }
            let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
            Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
        })
    }
}

/// A request that got no answer: no connection, or one that broke.
fn broken(error: legacy::Error) -> HttpError {
    let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
    HttpError::new(kind, error)
}

/// HTTP status that a server returned instead of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("answered with {0}")]
pub struct Refused(pub u16);

/// Cause of an error of the library: a broken connection, or a refused list. None if it is the
/// answer itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The way has broken.
    Way(HttpErrorKind),
    /// A list was refused.
    List(Refused),
}

impl Cause {
    /// Looks for it along an error's causes.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let (mut found, mut next) = (None, Some(error));
        while let Some(error) = next {
            if let Some(broken) = error.downcast_ref::<HttpError>() {
                found = Some(Cause::Way(broken.kind()));
            }
            if let Some(refused) = error.downcast_ref::<Refused>() {
                return Some(Cause::List(*refused));
            }
            next = error.source();
        }
        found
    }
}
