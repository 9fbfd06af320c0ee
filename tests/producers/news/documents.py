"""Documents in every format, all invented: the shapes are those of the wires, the stories are not."""

from __future__ import annotations

import json
from typing import Any

RECEIVED = 1_789_744_000_000_000_000
"""2026-09-18T15:06:40Z, when the documents of these tests were received."""


def ninjs_1(**changes: Any) -> bytes:
    """A ninjs 1.4 item."""
    item = {
        "uri": "http://www.harborline.example/news/20260918-0001",
        "type": "text",
        "version": "1",
        "versioncreated": "2026-09-18T15:00:00Z",
        "pubstatus": "usable",
        "language": "en",
        "urgency": 3,
        "headline": "Kestavel Airlines grounds 12 narrow-bodies",
        "body_xhtml": "<p>Kestavel Airlines grounds 12 jets &amp; cuts its outlook.</p><p>Shares fell.</p>",
        "organisation": [{"name": "Kestavel", "symbols": [{"ticker": "KSTV", "exchange": "NYSE"}]}],
    }
    return json.dumps({**item, **changes}).encode()


def ninjs_2(**changes: Any) -> bytes:
    """A ninjs 2.1 item with a plain and a marked-up body."""
    item = {
        "uri": "http://nordpuls.example/text/260918-a1",
        "representationtype": "full",
        "version": "2",
        "versioncreated": "2026-09-18T17:00:00+02:00",
        "pubstatus": "usable",
        "language": "sv",
        "copyrightholder": "Nordpuls",
        "headlines": [{"role": "main", "value": "Gruvbolaget Malmvik höjer utdelningen"}],
        "bodies": [
            {"role": "html5", "contenttype": "text/html", "value": "<p>Malmvik höjer.</p>"},
            {"role": "text", "contenttype": "text/plain", "value": "Malmvik höjer utdelningen till 4,50 kronor."},
        ],
    }
    return json.dumps({**item, **changes}).encode()


def ninjs_3(**changes: Any) -> bytes:
    """A ninjs 3.0 item."""
    item = {
        "uri": "urn:newsml:rheinblick.example:20260918:260918-99-1",
        "version": "3",
        "versionCreated": "2026-09-18T17:00:00+02:00",
        "pubStatus": "usable",
        "language": "de",
        "headlines": [{"role": "main", "value": "Talwerke senken die Prognose für 2026"}],
        "bodies": [
            {"role": "html", "contentType": "text/html", "value": "<section><p>Die Talwerke senken.</p></section>"}
        ],
    }
    return json.dumps({**item, **changes}).encode()


def newsml_g2(
    *, status: str = "stat:usable", version: str = "4", meta: str = "", item_class: str = "ninat:text"
) -> bytes:
    """A NewsML-G2 item with NITF content."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<newsItem xmlns="http://iptc.org/std/nar/2006-10-01/" guid="urn:newsml:harborline.example:20260918:QUILL-Q3"
    version="{version}" standard="NewsML-G2" standardversion="2.35" xml:lang="en-US">
  <itemMeta>
    <itemClass qcode="{item_class}"/>
    <provider uri="http://www.harborline.example/"/>
    <versionCreated>2026-09-18T11:00:00-04:00</versionCreated>
    {meta}
    <pubStatus qcode="{status}"/>
  </itemMeta>
  <contentMeta>
    <urgency>2</urgency>
    <headline>
      Quillmark Foods lifts its full-year forecast
    </headline>
    <language tag="en-US"/>
  </contentMeta>
  <assert literal="Quillmark">
    <organisationDetails>
      <hasInstrument symbol="QLM" market="mic:XLON"/>
      <hasInstrument symbol="QLM/B" market="mic:XNYS"/>
    </organisationDetails>
  </assert>
  <contentSet>
    <inlineXML contenttype="application/nitf+xml">
      <nitf xmlns="http://iptc.org/std/NITF/2006-10-18/"><body>
        <body.head><hedline><hl1>Quillmark Foods lifts its full-year forecast</hl1></hedline></body.head>
        <body.content><p>Quillmark now expects
          4.1 percent.</p><table><tr><th>Year</th><th>Sales</th></tr><tr><td>2026</td><td>1,204</td></tr></table>
        </body.content>
      </body></nitf>
    </inlineXML>
  </contentSet>
</newsItem>""".encode()


def newsml_1(
    *,
    status: str = "Usable",
    revision: str = '<RevisionId PreviousRevision="0" Update="N">1</RevisionId>',
    more: str = "",
) -> bytes:
    """A press release in NewsML 1.2, with a blank line before its root and mojibake in its text."""
    return f"""
<NewsML Version="1.2">
  <NewsItem>
    <Identification><NewsIdentifier>
      <ProviderId>pressfeed.example</ProviderId><DateId>20260918</DateId><NewsItemId>20260918005001</NewsItemId>
      {revision}
    </NewsIdentifier></Identification>
    <NewsManagement>
      <NewsItemType FormalName="News"/>
      <FirstCreated>20260918T150000+0000</FirstCreated>
      <ThisRevisionCreated>20260918T150000+0000</ThisRevisionCreated>
      <Status FormalName="{status}"/>
      {more}
    </NewsManagement>
    <NewsComponent>
      <DescriptiveMetadata><Language FormalName="en"/></DescriptiveMetadata>
      <Metadata>
        <MetadataType FormalName="Securities Identifier"/>
        <Property FormalName="Ticker Symbol" Value="ORVL"/><Property FormalName="Exchange" Value="NASDAQ"/>
      </Metadata>
      <NewsComponent>
        <NewsLines><HeadLine>Orvelle Announces Third Quarter Results</HeadLine></NewsLines>
        <DescriptiveMetadata><Language FormalName="en"/></DescriptiveMetadata>
        <NewsComponent><Role FormalName="StyleSheet"/>
          <ContentItem><DataContent> .c {{margin: 0}}</DataContent></ContentItem></NewsComponent>
        <NewsComponent><Role FormalName="Contact"/>
          <ContentItem><DataContent>Investor Relations</DataContent></ContentItem></NewsComponent>
        <NewsComponent><Role FormalName="Body"/>
          <ContentItem><DataContent><html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>
            <p>Orvelleâ€™s revenue rose.</p></body></html></DataContent></ContentItem></NewsComponent>
      </NewsComponent>
    </NewsComponent>
  </NewsItem>
</NewsML>""".encode()


def rss(*items: str, title: str = "Harborline", language: str = "en") -> bytes:
    """An RSS page with these items."""
    return (
        f"<?xml version='1.0' encoding='utf-8'?><rss version='2.0'><channel><title>{title}</title>"
        f"<link>https://www.harborline.example/</link><language>{language}</language>{''.join(items)}</channel></rss>"
    ).encode()


def rss_item(number: int, title: str, *, at: str = "Fri, 18 Sep 2026 15:00:00 GMT", more: str = "") -> str:
    """One item of an RSS page."""
    link = f"https://www.harborline.example/{number}"
    return f"<item><title>{title}</title><link>{link}</link><guid>{link}</guid><pubDate>{at}</pubDate>{more}</item>"


ATOM = b"""<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom" xml:lang="en"><title>Harborline</title>
<link href="https://www.harborline.example/"/><id>tag:harborline.example,2026:feed</id>
<entry><id>tag:harborline.example,2026:7</id><title type="html">Vantor &amp;amp; Pell agree to merge</title>
<link href="https://www.harborline.example/7"/><published>2026-09-18T15:00:00Z</published>
<updated>2026-09-18T15:04:00Z</updated><content type="html">&lt;p&gt;Vantor and Pell agreed.&lt;/p&gt;</content></entry>
</feed>"""


def envelope(action: str = "Created", *, story: int = 501, **content: Any) -> dict[str, Any]:
    """A message of a vendor that pushes, in the shape of an envelope with two ids."""
    full = {
        "id": story,
        "title": "Brightmoor Pharma wins approval for its migraine drug",
        "body": "<p>Brightmoor said so.</p>",
        "created_at": "2026-09-18T15:00:00Z",
        "updated_at": "2026-09-18T15:00:00Z",
        "securities": [{"symbol": "BMRP", "exchange": "NASDAQ"}],
        "url": "https://vendor.example/501",
    }
    return {
        "id": f"message-{story}-{action}",
        "api_version": "websocket/v1",
        "kind": "News/v1",
        "data": {"action": action, "id": story, "timestamp": "2026-09-18T15:00:01Z", "content": {**full, **content}},
    }


FED_STATEMENT = """Indicators of activity have continued to strengthen. Job gains are strong in the U.S. economy.

The Committee decided to raise the target range for the federal funds rate to 1/4 to 1/2 percent. Inflation is elevated.

Voting for the monetary policy action were Jane A. Doe, Chair; and John B. Roe, Vice Chair.

For media inquiries, call the press office.

Implementation Note issued March 16, 2022"""

ECB_STATEMENT = """*   PRESS RELEASE

Monetary policy decisions
=========================

11 September 2025

The Governing Council today decided to keep the three key ECB interest rates unchanged. Inflation is at around 2%.

The Governing Council is not pre-committing to a particular rate path.

CONTACT

European Central Bank
"""

FED_PAGE = (
    "<html><head><title>FOMC statement</title><script>x('The Committee decided to')</script></head>"
    "<body><nav><p>The Committee decided to show a menu.</p></nav><div id='content'><div id='article'>"
    "<h3>Federal Reserve issues FOMC statement</h3><p>For release at 2:00 p.m. EDT</p>{paragraphs}</div></div>"
    "<footer><p>Board of Governors</p></footer></body></html>"
)


def fed_page(statement: str = FED_STATEMENT) -> bytes:
    """A press release's page with a statement in it."""
    paragraphs = "".join(f"<p>{paragraph}</p>" for paragraph in statement.split("\n\n"))
    return FED_PAGE.format(paragraphs=paragraphs).encode()
