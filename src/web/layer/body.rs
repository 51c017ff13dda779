use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::web::layer::held::Sending;

pin_project! {
    /// The body of the inner service's response, or of a response by the layer. It holds what the request has taken
    /// until it has ended or is dropped.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = Projected]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B, sending: Sending },
        Refusal { rest: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(super) const fn inner(body: B, sending: Sending) -> Self {
        Self { kind: Kind::Inner { body, sending } }
    }

    pub(super) fn refusal(text: String) -> Self {
        // A gRPC client expects no frame after the headers, not even an empty one.
        let rest = (!text.is_empty()).then(|| text.into());
        Self { kind: Kind::Refusal { rest } }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().kind.project() {
            Projected::Inner { mut body, sending } => {
                let frame = body.as_mut().poll_frame(cx);
                match &frame {
                    Poll::Pending => {}
                    Poll::Ready(Some(Ok(frame))) => sending.sent(frame),
                    Poll::Ready(Some(Err(_))) => sending.end(),
                    Poll::Ready(None) => {
                        sending.complete();
                        sending.end();
                    }
                }
                frame
            }
            Projected::Refusal { rest } => Poll::Ready(rest.take().map(|bytes| Ok(Frame::data(bytes.into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, sending } => {
                let is_end = body.is_end_stream();
                if is_end {
                    sending.complete();
                }
                is_end
            }
            Kind::Refusal { rest } => rest.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Refusal { rest } => SizeHint::with_exact(rest.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}
