/// Returns the URL of a database on the same server.
pub(super) fn with_database(url: &str, name: &str) -> String {
    let (address, options) = url.split_once('?').map_or((url, ""), |(address, options)| (address, options));
    let slash = address.rfind('/').expect("a URL with a path");
    let options = if options.is_empty() { String::new() } else { format!("?{options}") };
    format!("{}/{name}{options}", &address[..slash])
}
