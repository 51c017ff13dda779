//! Refusals over gRPC: a status with details.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use crate::web::answer::{Refusal, set_retry_after};

impl Refusal {
    const fn code(&self) -> Code {
        match self {
            Self::Denied { .. } => Code::ResourceExhausted,
            // Not ALREADY_EXISTS for a reused key: clients take that for a success of their own first attempt.
            Self::BadRequest(_) | Self::KeyReused => Code::InvalidArgument,
            Self::DeniedNetwork => Code::PermissionDenied,
            Self::NoDecision => Code::Unavailable,
            Self::Misconfigured => Code::Internal,
        }
    }

    pub(in crate::web) fn grpc_status(&self) -> Status {
        let mut details = ErrorDetails::new();
        let mut metadata = HeaderMap::new();
        if let Some(wait) = self.retry_after() {
            details.set_retry_info(Some(wait));
            set_retry_after(&mut metadata, wait);
        }
        if let Self::Denied { policies, .. } = self {
            let violation = |policy: &String| QuotaViolation::new(policy, "The rate limit is exceeded.");
            details.set_quota_failure(policies.iter().map(violation).collect::<Vec<_>>());
        }
        let message = self.detail().unwrap_or_else(|| "The server failed.".to_owned());
        let metadata = MetadataMap::from_headers(metadata);
        Status::with_error_details_and_metadata(self.code(), message, details, metadata)
    }

    /// A response without a body. Its headers are the trailers.
    pub(super) fn trailers_only(&self, content_type: HeaderValue) -> Response<String> {
        let mut response = self.grpc_status().into_http::<String>();
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }
}
